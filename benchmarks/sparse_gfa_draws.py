"""What intervals of sparse group factor analysis cover, variational and sampled, and what a sweep costs.

Two Gaussian views, 40 features in all, three factors, z ~ N(0, 1), w = s N(0, 1), s ~ Bern(0.4), noise of
variance 1, 15 % of the entries hidden. Usage::

    python benchmarks/sparse_gfa_draws.py --out benchmarks/results/sparse_gfa_draws.json \\
        [--sizes 50 100] [--first 500] [--sets 10] [--draws 800] [--seconds 600] [--keep sets.jsonl]

Factors are matched to the true ones by the correlation of scores. Counted, in sets whose fit finds three,
and in those of them where the scores of each correlate above .8 with the true ones (others are mixtures of
them): 90 % intervals of the hidden entries and of scores, 95 % intervals of loadings of inclusion above .95:
the share within, its standard error over sets (whose intervals hit or miss together), and of how many.
"false": of loadings of inclusion above .95, .9, .8 and one half, how many there are, how many of them are
truly 0, how many their inclusions say, the ratio of these two, and its standard error over sets. "short" is
the first eighth of the draws of each chain alone: quantiles of few effective draws lie too close together.
"expected" is how many of these are 0 by a sampler that is told all but scores and loadings, given the same
data (`sparse_gfa_ideal`; its factors named by the same loadings): what false ones come to on average, without
the luck of the sets, which "ideal" shows (of its own inclusions). ``sweep`` is the CPU time of a sweep of one
chain over that of a variational pass of one fit (`sparse_gfa_sweep` compares fairly), ``mixed`` in how many
sets the chains had (no finding of the fit says otherwise), and the row "mixed" is of these sets alone: of
others the fit says that longer chains are needed.
``--seconds``: no set is begun after so many (CPU). ``--keep``: what each set gave, by line; sets that are in
it are not run again.
Rows are of one number of samples; those of other numbers that are in the file stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set
from scipy.optimize import linear_sum_assignment  # noqa: E402
from scipy.stats import norm  # noqa: E402
from sparse_gfa_ideal import inclusions  # noqa: E402

FACTORS, SHARE, FEATURES, HIDDEN = 3, 0.4, (20, 20), 0.15
CHAINS, SHORT = 2, 0.125
ABOVE = (0.95, 0.9, 0.8, 0.5)
"""Inclusions above which false loadings are counted."""
ALIKE = 0.8
"""Correlation of scores above which a factor of the fit is the true one rather than a mixture."""


def simulate(n_rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return scores, loadings, entries and which of them are hidden; features of all views side by side."""
    rng = np.random.default_rng([n_rows, seed])
    z = rng.normal(size=(n_rows, FACTORS))
    w = (rng.random((sum(FEATURES), FACTORS)) < SHARE) * rng.normal(size=(sum(FEATURES), FACTORS))
    y = z @ w.T + rng.normal(size=(n_rows, sum(FEATURES)))
    return z, w, y, rng.random(y.shape) < HIDDEN


def by_view(values: Any) -> dict[str, Any]:
    """Return the columns of each view."""
    parts = np.split(values, np.cumsum(FEATURES)[:-1], axis=1)
    return {f"view{m}": part for m, part in enumerate(parts)}


def summarise(posterior: Any, names: list[str], share: float = 1.0) -> dict[str, Any]:
    """Return mean and ends of intervals of scores and loadings of some views, and inclusion probabilities.

    Of draws: of the first ``share`` of those of each chain.
    """
    inclusion = np.concatenate([posterior.inclusion(name).values for name in names])
    if posterior.kind == "monte carlo":
        z = posterior.draws("scores_draws").values
        w = np.concatenate([posterior.draws(f"loadings_{name}").values for name in names], axis=2)
        z, w = (part[:, : max(2, round(share * part.shape[1]))] for part in (z, w))
        inclusion = (w != 0.0).mean(axis=(0, 1))
        z, w = z.reshape(-1, *z.shape[2:]), w.reshape(-1, *w.shape[2:])
        ends = [np.quantile(z, (0.05, 0.95), axis=0), np.quantile(w, (0.025, 0.975), axis=0)]
        return {"scores": (z.mean(0), *ends[0]), "loadings": (w.mean(0), *ends[1]), "inclusion": inclusion}
    found = {"inclusion": inclusion}
    z, v = posterior.variable("scores").values, posterior.variable("scores_variance").values
    w = np.concatenate([posterior.variable(f"loadings_{name}").values for name in names])
    u = np.concatenate([posterior.variable(f"loadings_variance_{name}").values for name in names])
    for name, mean, variance, level in (("scores", z, v, 0.95), ("loadings", w, u, 0.975)):
        half = norm.ppf(level) * np.sqrt(variance)
        found[name] = mean, mean - half, mean + half
    return found


def matched(
    posterior: Any, z: Any, w: Any, share: float = 1.0
) -> tuple[dict[str, Any], Any, Any, float] | None:
    """Return what intervals hold, inclusions and loadings in the order of true factors, and the lowest r.

    None where another number of factors was found.
    """
    found = summarise(posterior, [f"view{m}" for m in range(len(FEATURES))], share)
    if found["inclusion"].shape[1] != FACTORS:
        return None
    r = np.corrcoef(z.T, found["scores"][0].T)[:FACTORS, FACTORS:]
    _, order = linear_sum_assignment(-np.abs(r))
    r = r[np.arange(FACTORS), order]
    inside = {}
    for name, truth in (("scores", z), ("loadings", w)):
        _, low, high = (part[:, order] for part in found[name])
        inside[name] = (truth * np.sign(r) >= low) & (truth * np.sign(r) <= high)
    return inside, found["inclusion"][:, order], found["loadings"][0][:, order], float(np.abs(r).min())


def judge(
    posterior: Any, z: Any, w: Any, y: Any, hidden: Any, share: float = 1.0
) -> tuple[dict[str, tuple[float, ...]], Any, Any] | None:
    """Return hits and tries of each kind of interval, inclusions and loadings in the order of true factors.

    None where another number of factors was found.
    """
    found = matched(posterior, z, w, share)
    if found is None:
        return None
    inside, inclusion, loadings, lowest = found
    sure = inclusion > 0.95
    predicted = [posterior.predict(f"view{m}", interval=0.9).load() for m in range(len(FEATURES))]
    low, high = (np.concatenate([p[end].values for p in predicted], axis=1) for end in ("lower", "upper"))
    within = ((y >= low) & (y <= high))[hidden]
    counted: dict[str, tuple[float, ...]] = {
        "lowest r": (lowest,),
        "predictions 90 %": (float(within.sum()), float(within.size)),
        "scores 90 %": (float(inside["scores"].sum()), float(z.size)),
        "loadings 95 %": (float(inside["loadings"][sure].sum()), float(sure.sum())),
    }
    return counted, inclusion, loadings


def false_loadings(inclusion: Any, w: Any, ideal: Any) -> dict[str, tuple[float, ...]]:
    """Return false loadings, claimed ones, expected ones and all above each of `ABOVE`."""
    found = {}
    for least in ABOVE:
        on = inclusion > least
        numbers = (w[on] == 0).sum(), (1.0 - inclusion)[on].sum(), (1.0 - ideal)[on].sum(), on.sum()
        found[f"false above {least:g}"] = tuple(map(float, numbers))
    return found


def run(n_rows: int, seed: int, draws: int) -> dict[str, Any]:
    """Fit one set both ways; return what was covered and CPU seconds of an iteration."""
    import factorflow
    from factorflow.models import SparseGFA

    z, w, y, hidden = simulate(n_rows, seed)
    out: dict[str, Any] = {}
    judged: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shown = by_view(np.where(hidden, np.nan, y))
        dataset = factorflow.write_dataset(Path(folder, "data.zarr"), shown)
        for name, options in (("variational", {}), ("draws", {"n_draws": draws, "chains": CHAINS})):
            begun = time.process_time()
            fit = factorflow.fit(dataset, SparseGFA(n_factors=6, **options), seed=seed, progress=False)
            seconds = time.process_time() - begun
            out[name] = {"seconds": seconds, "iterations": int(fit.trace.sizes["iteration"])}
            judged[name] = judge(fit, z, w, y, hidden)
            if judged[name] is None:  # the draws would be of as many factors
                return {}
            if name == "draws":
                out["mixed"] = not any(finding.kind == "mixing" for finding in fit.findings)
                out["short"], judged["short"] = {}, judge(fit, z, w, y, hidden, SHORT)
    names = [w, *(loadings for _, _, loadings in judged.values())]
    ideal, *named = inclusions(z, w, y, hidden, SHARE, seed, names)
    for (name, (covered, inclusion, _)), expected in zip(judged.items(), named, strict=True):
        out[name]["covered"] = covered | false_loadings(inclusion, w, expected)
    out["ideal"] = false_loadings(ideal, w, ideal)
    sweeps = CHAINS * (draws + 200)
    pass_ = out["variational"]["seconds"] / out["variational"]["iterations"]
    out["sweep"] = (out["draws"]["seconds"] - out["variational"]["seconds"]) / sweeps / pass_
    return out


def of_sets(pairs: Any) -> tuple[float, float]:
    """Return the ratio of two sums over sets, (S, 2), and its standard error over sets."""
    hits, tries = np.sum(pairs, axis=0)
    ratio, n = hits / tries if tries else np.nan, len(pairs)
    left = pairs[:, 0] - ratio * pairs[:, 1]
    error = np.sqrt((left**2).sum() * n / (n - 1.0)) / tries if tries and n > 1 else np.nan
    return round(float(ratio), 4), round(float(error), 4)


def summed(sums: Any) -> dict[str, Any]:
    """Return false, claimed, expected loadings and all, and ratios to the claimed with standard errors."""
    false, claimed, expected, of = sums.sum(axis=0)
    found = {"false": int(false), "claimed": round(float(claimed), 2), "of": int(of)}
    found |= dict(zip(("ratio", "error"), of_sets(sums[:, :2]), strict=True))
    found |= {"expected": round(float(expected), 2)}
    return found | dict(zip(("expected ratio", "expected error"), of_sets(sums[:, [2, 1]]), strict=True))


def table(n_rows: int, first: int, draws: int, sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of one number of samples."""
    rows, whole = [], [s for s in sets if "sweep" in s]
    for name, least in itertools.product(("variational", "short", "draws", "mixed"), (0.0, ALIKE)):
        those = [s for s in whole if s["variational"]["covered"]["lowest r"][0] > least]
        if name == "mixed":
            found = [s["draws"]["covered"] for s in those if s["mixed"]]
        else:
            found = [s[name]["covered"] for s in those]
        row: dict[str, Any] = {"samples": n_rows, "posterior": name, "first": first, "sets": len(sets)}
        row["all r above"] = least
        row |= {
            "used": len(found),
            "draws": {"short": round(SHORT * draws), "draws": draws, "mixed": draws}.get(name),
        }
        for key in list(found[0])[1:] if found else ():
            sums = np.array([f[key] for f in found])
            share, error = of_sets(sums[:, :2])
            row[key] = {"share": share, "error": error, "of": int(sums[:, 1].sum())}
            if key.startswith("false"):
                row[key] = summed(sums)
        if name == "draws" and whole and not least:
            row["mixed"] = sum(s["mixed"] for s in whole)
            row["sweep"] = round(float(np.median([s["sweep"] for s in whole])), 2)
        rows.append(row)
    row = {"samples": n_rows, "posterior": "ideal", "first": first, "sets": len(sets), "used": len(whole)}
    for key in whole[0]["ideal"] if whole else ():
        row[key] = summed(np.array([s["ideal"][key] for s in whole]))
    return [*rows, {**row, "all r above": 0.0}]


def kept(file: Path | None, n_rows: int, seed: int, draws: int) -> dict[str, Any]:
    """Return what a set gave: from the file if it is there, else run, and written there."""
    key = {"samples": n_rows, "seed": seed, "draws of each chain": draws}
    if file is not None and file.exists():
        for line in map(json.loads, file.read_text().splitlines()):
            if key.items() <= line.items():
                return line  # type: ignore[no-any-return]
    found = {**key, **run(n_rows, seed, draws)}
    if file is not None:
        with file.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
    return found


def main() -> None:
    """Run all sets, print and write what they gave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--first", type=int, default=500, help="seed of the first set")
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--draws", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--keep", type=Path, help="file of what each set gave")
    options = parser.parse_args()
    run(options.sizes[0], 0, 5)  # compiles what is compiled
    begun = time.process_time()
    for number, n_rows in enumerate(options.sizes):
        sets: list[dict[str, Any]] = []
        for seed in range(options.first, options.first + options.sets):
            if time.process_time() - begun > options.seconds * (1 + number) / len(options.sizes):
                break
            sets.append(kept(options.keep, n_rows, seed, options.draws))
            rows = table(n_rows, options.first, options.draws, sets)
            print(json.dumps(next(row for row in rows if row["posterior"] == "draws")), flush=True)
            if options.out is not None:
                others = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
                rows = [row for row in others if row["samples"] != n_rows] + rows
                lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
                head = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, loaded", "chains": CHAINS}
                head_text = json.dumps(head)[1:-1]
                options.out.write_text(f'{{\n {head_text},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
