"""What intervals of draws of sparse group factor analysis cover where entries are binary.

Data are those of ``sparse_gfa_draws.py``, of which entries of the second view ("mixed") or of both ("binary")
are y ~ Bern(sigma(1.5 x)). Usage::

    python benchmarks/sparse_gfa_draws_binary.py --out benchmarks/results/sparse_gfa_draws_binary.json \\
        [--kind mixed] [--samples 100] [--first 2000] [--sets 12] [--draws 1000] [--keep sets.json]

Counted as there, in sets whose fit finds three factors: 90 % intervals of scores, 95 % intervals of loadings
of inclusion above .95, of each view: the share, its standard error over sets, hits and tries; loadings that
are truly 0 of those of inclusion above .95, .9, .8 and one half beside what the inclusions say, and in how
many sets the findings say nothing of chains that have not mixed. Beside draws the same of the fit they begin
at, its loadings as the bound leaves them. ``--keep``: what each set gave; sets that are in it are not run
again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")  # one core each
)

import numpy as np  # noqa: E402
from sparse_gfa_draws import ABOVE, CHAINS, FEATURES, by_view, matched, of_sets, simulate  # noqa: E402

STEEP = 1.5
KINDS = {"mixed": ("gaussian", "bernoulli"), "binary": ("bernoulli", "bernoulli")}


def binary(kind: str, n_rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return scores, loadings, entries and which of them are hidden."""
    z, w, y, hidden = simulate(n_rows, seed)
    first = 0 if kind == "binary" else FEATURES[0]
    w[first:] *= STEEP
    x = z @ w[first:].T
    y[:, first:] = np.random.default_rng([n_rows, seed, 5]).random(x.shape) < 1.0 / (1.0 + np.exp(-x))
    return z, w, y, hidden


def judge(posterior: Any, z: Any, w: Any) -> dict[str, list[float]] | None:
    """Return hits and tries by kind of interval, and false and claimed loadings; None without three."""
    found = matched(posterior, z, w)
    if found is None:
        return None
    inside, inclusion, *_ = found
    out = {"scores, 90 %": [float(inside["scores"].sum()), float(z.size)]}
    for m, rows in enumerate((slice(FEATURES[0]), slice(FEATURES[0], None))):
        sure = inclusion[rows] > 0.95
        out[f"loadings of view {m}, 95 %"] = [float(inside["loadings"][rows][sure].sum()), float(sure.sum())]
    for least in ABOVE:
        on = inclusion > least
        out[f"false above {least:g}"] = [float((w[on] == 0).sum()), float((1.0 - inclusion)[on].sum())]
    return out


def run(kind: str, n_rows: int, seed: int, draws: int) -> dict[str, Any]:
    """Fit and sample one set."""
    import factorflow
    from factorflow.models import SparseGFA

    z, w, y, hidden = binary(kind, n_rows, seed)
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        views = by_view(np.where(hidden, np.nan, y))
        kinds = dict(zip(views, KINDS[kind], strict=True))
        dataset = factorflow.write_dataset(Path(folder, "data.zarr"), views, kinds)
        for name, options in (("variational", {}), ("draws", {"n_draws": draws, "chains": CHAINS})):
            fit = factorflow.fit(dataset, SparseGFA(n_factors=6, **options), seed=seed, progress=False)
            found = judge(fit, z, w)
            if found is None:
                return {}
            out[name] = found
        out["silent"] = not any(finding.kind == "mixing" for finding in fit.findings)
    return out


def main() -> None:
    """Run all sets, print and write what they gave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=list(KINDS), default="mixed")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--first", type=int, default=2000, help="seed of the first set")
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="file of what each set gave")
    o = parser.parse_args()
    written = json.loads(o.keep.read_text()) if o.keep and o.keep.exists() else {}
    sets: list[dict[str, Any]] = []
    for seed in range(o.first, o.first + o.sets):
        key = f"{o.kind}, {o.samples} samples, seed {seed}, {CHAINS} x {o.draws}"
        if key not in written:
            written[key] = run(o.kind, o.samples, seed, o.draws)
            if o.keep:
                o.keep.write_text(json.dumps(written, indent=1))
        sets.append(written[key])
        used = [s for s in sets if s]
        row: dict[str, Any] = {"sets": len(sets), "used": len(used), "silent": sum(s["silent"] for s in used)}
        for name in ("variational", "draws") if used else ():
            pairs = {what: np.array([s[name][what] for s in used]) for what in used[0][name]}
            row[name] = {
                what: [*of_sets(found), int(found[:, 0].sum()), round(float(found[:, 1].sum()), 1)]
                for what, found in pairs.items()
            }
        print(key, json.dumps(row), flush=True)
        rows = json.loads(o.out.read_text()) if o.out.exists() else {}
        rows["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, loaded"
        rows[f"{o.kind}, {o.samples} samples"] = row
        o.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
