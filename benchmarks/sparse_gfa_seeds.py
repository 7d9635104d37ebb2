"""How far fits of sparse group factor analysis from different seeds agree, with one start and with several.

Simulated sets are like four omics views of 200 samples: two large Gaussian views and a small one, each absent
in some samples, and a binary one of rare entries; 30 factors of falling strength: K = 15 leaves a tail.
Real ones are read from ``FOLDER/views/NAME.npz``. Usage::

    python benchmarks/sparse_gfa_seeds.py --out benchmarks/results/sparse_gfa_seeds.json \\
        [--sets 80 81] [--real breast_tcga ... --data FOLDER] [--starts 1 4] [--seeds 4]

Two fits agree in a factor where some factor of the other has scores that correlate with it by more than .95,
in absolute value. Printed of each set and number of starts, over all pairs of seeds: the share of factors for
which that holds, the share below .8, how far apart the bounds are (nats), the highest of them, and the
median CPU seconds of a fit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

SIZES = {"drugs": 300, "methylation": 1500, "mrna": 2000, "mutations": 60}
ABSENT = {"drugs": 0.08, "methylation": 0.02, "mrna": 0.32, "mutations": 0.0}
"""Features of the views, and the share of samples in which a view is absent."""
TRUE_FACTORS, EXPLAINED = 30, 0.45
N_FACTORS = 15


def simulated(seed: int, n_rows: int = 200) -> tuple[dict[str, Any], dict[str, str]]:
    """Return four views of one set, and their likelihoods."""
    rng = np.random.default_rng([seed, n_rows])
    scores, views = rng.standard_normal((n_rows, TRUE_FACTORS)), {}
    for name, size in SIZES.items():
        active = rng.random(TRUE_FACTORS) < 0.5
        share = active * 0.85 ** np.arange(TRUE_FACTORS) * rng.gamma(2.0, 0.5, TRUE_FACTORS)
        present = rng.random((size, TRUE_FACTORS)) < rng.beta(1.0, 2.0, TRUE_FACTORS)
        loadings = present * rng.standard_normal((size, TRUE_FACTORS))
        power = EXPLAINED * share / share.sum() * size
        loadings *= np.sqrt(power / np.maximum((loadings**2).sum(axis=0), 1e-9))
        x = scores @ loadings.T
        if name == "mutations":
            logit = rng.normal(-2.0, 0.7, size) + 3.0 * x
            views[name] = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-logit))).astype(np.float32)
        else:
            noise = np.sqrt((1.0 - EXPLAINED) * rng.gamma(4.0, 0.25, size))
            views[name] = (x + noise * rng.standard_normal(x.shape)).astype(np.float32)
            views[name][rng.random(n_rows) < ABSENT[name]] = np.nan
    return views, {name: "bernoulli" if name == "mutations" else "gaussian" for name in SIZES}


def real(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the views of a real set but for those that code the same values again, and their likelihoods."""
    with np.load(folder / "views" / f"{name}.npz") as file:
        kinds = dict(zip(map(str, file["view_names"]), map(str, file["likelihoods"]), strict=True))
        again = ("otu_present", "otu_count", "pixbin", "rna_detected")
        views = {view: file[f"Y_{view}"] for view in kinds if view not in again}
    return {v: y[:, np.nanstd(y, axis=0) > 0] for v, y in views.items()}, {v: kinds[v] for v in views}


def nearest(mine: Any, other: Any) -> Any:
    """Return the largest absolute correlation of each factor with any of another fit."""
    k = mine.shape[1]
    return np.abs(np.corrcoef(mine.T, other.T)[:k, k:]).max(axis=1, initial=0.0)


def compared(data: Any, n_starts: int, n_seeds: int) -> dict[str, Any]:
    """Return how far fits from different seeds agree."""
    import factorflow
    from factorflow.models import SparseGFA

    config = SparseGFA(n_factors=N_FACTORS, n_starts=n_starts)
    scores, bounds, seconds = [], [], []
    for seed in range(n_seeds):
        begun = time.process_time()
        posterior = factorflow.fit(data, config, seed=seed, progress=False)
        seconds.append(time.process_time() - begun)
        scores.append(posterior.variable("scores").values)
        bounds.append(posterior.summary()["objective"])
    found = np.concatenate([nearest(a, b) for a, b in itertools.permutations(scores, 2)])
    return {
        "starts": n_starts,
        "seeds": n_seeds,
        "agree": round(float((found > 0.95).mean()), 3),
        "below .8": round(float((found < 0.8).mean()), 3),
        "spread": round(max(bounds) - min(bounds), 1),
        "highest bound": round(max(bounds), 1),
        "factors": [s.shape[1] for s in scores],
        "cpu_seconds": round(float(np.median(seconds)), 1),
    }


def main() -> None:
    """Run the comparisons, print them and write them."""
    import factorflow

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", type=int, nargs="*", default=[80, 81])
    parser.add_argument("--real", nargs="*", default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--starts", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    logging.getLogger("factorflow").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    for n_starts, name in itertools.product(given.starts, [*map(str, given.sets), *given.real]):
        views, likelihoods = real(given.data, name) if name in given.real else simulated(int(name))
        with tempfile.TemporaryDirectory() as folder:
            data = factorflow.write_dataset(Path(folder) / "d.zarr", views, likelihoods)
            rows.append({"set": name, **compared(data, n_starts, given.seeds)})
        print(json.dumps(rows[-1]), flush=True)
        if given.out:
            machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread, loaded"
            lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            given.out.write_text(f'{{\n "machine": {json.dumps(machine)},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
