"""Poisson factors on sparse counts: time and memory of a pass, of a fit, and what is found, beside NMF.

    python benchmarks/poisson_factors.py [--parts loop,scale,peers,batches,consensus] [--out FILE]

Counts are negative binomial (dispersion 0.25) with programs, as `factorflow simulate poisson_factors` makes
them, 7 % of them not zero. One thread; seconds are those of the processor, so that neighbours on the machine
count less.

loop     the loop over the entries that are not zero, by K: nanoseconds an entry, the best of 9
scale    100 000 x 5000, K = 16: a pass of a fit, memory of the process, an estimate for 1.3e6 x 28 000;
         the first run writes the store, the second measures
peers    8000 x 3000, 10 programs and a common one: fits beside NMF of scikit-learn (Frobenius of scaled
         genes, as cNMF has it, and Kullback-Leibler); correlations of programs and usages with the truth
         (pip install -r benchmarks/requirements-poisson_factors.txt)
batches  2500 x 1200, 6 programs, two batches: with and without the batch; number of programs by the bound
         and by held-out entries, and parts of counts
consensus  2500 x 1200, 6 programs, 10 starts: single starts, the one of highest bound, the consensus, and the
         fit that began with it, by number of programs
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import factorflow
from factorflow.models import PoissonFactors

DENSITY, DISPERSION = 0.07, 0.25
FOLDER = Path(tempfile.gettempdir()) / "factorflow-poisson-factors"
"""Where the store of the part `scale` stays between runs."""


def simulate(n: int, d: int, k: int, seed: int = 0, batches: int = 0, whole: bool = True) -> dict[str, Any]:
    """Return counts (CSR, whole or as a generator of 2000 rows each), programs, usages and batches."""
    rng = np.random.default_rng(seed)
    base = np.exp(1.6 * rng.standard_normal(d))
    beta = np.zeros((d, k + 1))
    beta[:, 0] = base
    for j in range(1, k + 1):
        own = rng.random(d) < 0.06
        beta[own, j] = base[own] * np.exp(1.5 + 0.7 * rng.standard_normal(own.sum()))
    beta /= beta.sum(axis=0)
    theta = rng.gamma(0.3, 1.0, (n, k))
    theta *= 0.35 / (theta.sum(axis=1, keepdims=True) + 1e-3)
    theta = np.column_stack([np.full(n, 0.65), theta])
    size = np.exp(0.45 * rng.standard_normal(n))
    code = rng.integers(0, max(1, batches), n)
    gamma = np.exp(0.6 * rng.standard_normal((max(1, batches), d))) if batches else np.ones((1, d))

    def draw(scale: float, first: int, last: int) -> Any:
        mean = ((theta[first:last] * (scale * size[first:last])[:, None]) @ beta.T) * gamma[code[first:last]]
        mean *= rng.standard_gamma(1 / DISPERSION, mean.shape, np.float32) * np.float32(DISPERSION)
        return sp.csr_array(rng.poisson(mean).astype(np.uint16))

    scale = 0.2 * d
    for _ in range(8):
        few = min(n, 300)
        scale *= (DENSITY / (draw(scale, 0, few).nnz / few / d)) ** 1.3
    blocks = (draw(scale, i, min(n, i + 2000)) for i in range(0, n, 2000))
    counts = sp.vstack(list(blocks)).tocsr() if whole else blocks
    return {"counts": counts, "programs": beta, "usage": theta, "batch": code, "gamma": gamma}


def write_h5ad(path: Path, n: int, d: int, k: int, seed: int, batches: int) -> None:
    """Simulate counts into an .h5ad file, a block of rows in memory at a time."""
    import anndata
    import h5py
    import pandas as pd

    world = simulate(n, d, k, seed, batches, whole=False)
    obs = pd.DataFrame({"batch": pd.Categorical([f"b{i}" for i in world["batch"]])})
    frames = {"obs": obs.set_axis([f"cell{i}" for i in range(n)]), "var": pd.DataFrame(index=range(d))}
    partial = path.with_suffix(".partial")
    with h5py.File(partial, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name, frame in frames.items():
            anndata.io.write_elem(file, name, frame.set_axis(frame.index.astype(str)))
        x = file.create_group("X")
        x.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, d]})
        arrays = {
            name: x.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(2**18,), compression="lzf")
            for name, dtype in (("data", np.uint16), ("indices", np.int32))
        }
        pointers = [np.zeros(1, np.int64)]
        for block in world["counts"]:
            first = int(pointers[-1][-1])
            pointers.append(first + block.indptr[1:].astype(np.int64))
            for name, array in arrays.items():
                array.resize((first + block.nnz,))
                array[first:] = getattr(block, name)
        x.create_dataset("indptr", data=np.concatenate(pointers))
    partial.rename(path)


def matched(found: Any, truth: Any) -> Any:
    """Return the correlation of each true column with the found one that is matched to it."""
    from scipy.optimize import linear_sum_assignment

    between = np.nan_to_num(np.corrcoef(found.T, truth.T))[: found.shape[1], found.shape[1] :]
    rows, columns = linear_sum_assignment(-between)
    return between[rows, columns][np.argsort(columns)]


def recovery(programs: Any, usage: Any, world: dict[str, Any]) -> dict[str, float]:
    """Return correlations of programs over genes and of usages over cells, without the common program."""
    share = usage / np.maximum(usage.sum(axis=1, keepdims=True), 1e-12)
    genes = matched(programs, world["programs"])[1:]
    return {
        "genes": round(float(genes.mean()), 3),
        "genes_least": round(float(genes.min()), 3),
        "usage": round(float(matched(share, world["usage"])[1:].mean()), 3),
    }


def write(world: dict[str, Any], path: Path) -> Any:
    import pandas as pd

    names = [f"cell{i}" for i in range(world["counts"].shape[0])]
    return factorflow.write_dataset(
        path,
        {"rna": world["counts"]},
        samples=names,
        likelihoods={"rna": "poisson"},
        obs=pd.DataFrame({"batch": [f"b{i}" for i in world["batch"]]}, names),
        layout={"rna": "sparse"},
        overwrite=True,
    )


def loop() -> dict[str, Any]:
    from factorflow.models.poisson_factors.kernels.entries import visit_entries

    world = simulate(8192, 5000, 10)
    counts = world["counts"]
    nnz = np.diff(counts.indptr).astype(np.int64)
    columns, entries = counts.indices.astype(np.uint16), counts.data.astype(np.uint8)
    rng, report = np.random.default_rng(0), dict[str, Any]()
    for k in (8, 16, 24, 32):
        scores = rng.gamma(1.0, 1.0, (counts.shape[0], k)).astype(np.float32)
        loadings = rng.gamma(1.0, 1.0, (counts.shape[1], k)).astype(np.float32)
        own, sums = np.zeros_like(scores), np.zeros_like(loadings)
        best = np.inf
        for i in range(10):
            began = time.process_time()
            visit_entries((0,) * k, nnz, columns, entries, scores, loadings, own, sums)
            if i:
                best = min(best, time.process_time() - began)
        report[f"ns_an_entry_k{k}"] = round(best / counts.nnz * 1e9, 2)
    return report


def scale(n: int = 100_000, d: int = 5000, k: int = 16, n_passes: int = 25) -> dict[str, Any]:
    """Measure passes over a store, which is written to `FOLDER` first if it is not there."""
    path = FOLDER / f"cells{n}.zarr"
    report: dict[str, Any] = {"n": n, "d": d, "k": k}
    if not path.exists():
        world = simulate(n, d, 10)
        began = time.process_time()
        write(world, path)
        (FOLDER / f"cells{n}.json").write_text(
            json.dumps(
                {"non_zeros": int(world["counts"].nnz), "ingest_cpu_seconds": time.process_time() - began}
            )
        )
        return {"written": str(path)}
    report |= json.loads((FOLDER / f"cells{n}.json").read_text())
    nnz = report["non_zeros"]
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    report["bytes_a_non_zero_on_disk"] = round(size / nnz, 2)
    child = f"""
import json, resource, time, factorflow
from factorflow.engine.executors.local import LocalExecutor
from factorflow.models import PoissonFactors
began, marks = time.process_time(), []
model = PoissonFactors(n_factors={k}, settling_iter={n_passes - 5}, max_iter=5)
def watch(event):
    if type(event).__name__ == "IterationDone":
        marks.append(time.process_time())
posterior = factorflow.fit({str(path)!r}, model, progress=False, on_event=watch)
print(json.dumps([time.process_time() - began, marks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", child], capture_output=True, text=True, check=True
    )
    cpu, marks, peak = json.loads(done.stdout.splitlines()[-1])
    each = np.diff(marks)
    least, median = (float(f(each)) / nnz * 1e9 for f in (np.min, np.median))
    entries = 1.3e6 * 28_000 * DENSITY
    return report | {
        "passes": len(marks),
        "cpu_seconds_of_the_fit": round(cpu, 1),
        "ns_an_entry_and_pass_median": round(median, 2),
        "ns_an_entry_and_pass_least": round(least, 2),
        "memory_of_the_process_mib": round(peak / 1024),
        "estimate_1.3e6_x_28000": {
            "non_zeros": entries,
            "core_seconds_a_pass": round(median * entries / 1e9, 1),
            "minutes_of_100_passes_on_16_cores": round(100 * median * entries / 1e9 / 16 / 60, 1),
        },
    }


def peers(n: int = 8000, d: int = 3000, k: int = 10) -> dict[str, Any]:
    from sklearn.decomposition import NMF

    world = simulate(n, d, k, seed=1)
    counts = world["counts"]
    report: dict[str, Any] = {"n": n, "d": d, "programs": k + 1, "non_zeros": int(counts.nnz)}
    with tempfile.TemporaryDirectory() as folder:
        dataset = write(world, Path(folder) / "data.zarr")
        began = time.process_time()
        fitted = factorflow.fit(dataset, PoissonFactors(n_factors=k + 1, max_iter=90), progress=False)
        cpu = time.process_time() - began
        n_passes = len(fitted.tree["optimization"].to_dataset()["objective"])
        report["poisson_factors"] = {
            "cpu_seconds": round(cpu, 1),
            "passes": n_passes,
            "ns_an_entry_and_pass": round(cpu / n_passes / counts.nnz * 1e9, 1),
            **recovery(fitted.loadings("rna").values, fitted.scores().values, world),
        }
    total = np.asarray(counts.sum(axis=1)).ravel()
    scaled = sp.diags_array(total.mean() / np.maximum(total, 1)) @ counts.astype(np.float64)
    second = np.asarray(scaled.power(2).mean(axis=0)).ravel() - np.asarray(scaled.mean(axis=0)).ravel() ** 2
    sd = np.sqrt(np.maximum(second, 1e-8))
    ways: dict[str, tuple[Any, dict[str, Any], Any]] = {
        "nmf_frobenius_scaled_genes": ((scaled @ sp.diags_array(1 / sd)).tocsr(), {"max_iter": 200}, sd),
        "nmf_kullback_leibler": (
            counts.astype(np.float64),
            {"beta_loss": "kullback-leibler", "solver": "mu", "max_iter": 60},
            1.0,
        ),
    }
    for name, (matrix, options, unit) in ways.items():
        model = NMF(k + 1, init="random", random_state=0, tol=1e-4, **options)
        began = time.process_time()
        usage = model.fit_transform(matrix)
        cpu = time.process_time() - began
        programs = model.components_.T * np.reshape(unit, (-1, 1))
        report[name] = {
            "cpu_seconds": round(cpu, 1),
            "passes": int(model.n_iter_),
            "ns_an_entry_and_pass": round(cpu / model.n_iter_ / counts.nnz * 1e9, 1),
            **recovery(programs, usage * programs.sum(axis=0), world),
        }
    return report


def batches(n: int = 2500, d: int = 1200, k: int = 6) -> dict[str, Any]:
    world = simulate(n, d, k, seed=3, batches=2)
    report: dict[str, Any] = {"n": n, "d": d, "programs": k + 1, "non_zeros": int(world["counts"].nnz)}
    with tempfile.TemporaryDirectory() as folder:
        dataset = write(world, Path(folder) / "data.zarr")
        for name, batch in (("without", None), ("with", "batch")):
            model = PoissonFactors(n_factors=k + 1, batch=batch, n_starts=3, max_iter=60)
            fitted = factorflow.fit(dataset, model, progress=False)
            usage = fitted.scores().values
            share = usage / usage.sum(axis=1, keepdims=True)
            related = [abs(np.corrcoef(column, world["batch"])[0, 1]) for column in share.T]
            report[name] = {
                "bound": round(float(fitted.tree["optimization/objective"].values[-1])),
                "largest_correlation_of_a_usage_with_the_batch": round(float(max(related)), 2),
                **recovery(fitted.loadings("rna").values, usage, world),
            }
            if batch:
                log = np.log(fitted.variable("batch_rna").values)
                seen = np.asarray(world["counts"].sum(axis=0)).ravel() > 100
                truth = np.log(world["gamma"])
                both = (log[1] - log[0])[seen], (truth[1] - truth[0])[seen]
                report["correlation_of_log_gamma"] = round(float(np.corrcoef(*both)[0, 1]), 3)
        report["by_programs"] = {}
        for number in (3, 5, 7, 9, 12):
            model = PoissonFactors(n_factors=number, batch="batch", max_iter=60)
            fitted = factorflow.fit(dataset, model, progress=False)
            hidden, part = (
                factorflow.fit(
                    dataset, model, holdout=0.1, holdout_unit=unit, progress=False
                ).holdout_scores()
                for unit in ("entry", "count")
            )
            report["by_programs"][number] = {
                "bound": round(float(fitted.tree["optimization/objective"].values[-1])),
                "held_out_log_likelihood": round(float(hidden.loc["rna", "log_likelihood"]), 5),
                "log_likelihood_of_parts": round(float(part.loc["rna", "log_likelihood"]), 5),
            }
    return report


def consensus(n: int = 2500, d: int = 1200, k: int = 6, n_starts: int = 10) -> dict[str, Any]:
    world = simulate(n, d, k, seed=5)
    report: dict[str, Any] = {"n": n, "d": d, "programs": k + 1, "starts": n_starts}

    def genes(programs: Any) -> float:
        return float(matched(programs, world["programs"])[1:].mean())

    with tempfile.TemporaryDirectory() as folder:
        dataset = write(world, Path(folder) / "data.zarr")
        for number in (k, k + 1, k + 3):
            model = PoissonFactors(n_factors=number, n_starts=n_starts, consensus=True, max_iter=80)
            fitted = factorflow.fit(dataset, model, progress=False)
            starts = fitted.variable("start_loadings_rna").values
            reached = fitted.variable("start_objective").values
            single = [genes(programs.T) for programs in starts]
            agreed = fitted.consensus()
            bound = float(fitted.tree["optimization/objective"].values[-1])
            report[f"k{number}"] = {
                "single_mean": round(float(np.mean(single)), 3),
                "single_sd": round(float(np.std(single)), 3),
                "highest_bound": round(single[int(reached.argmax())], 3),
                "consensus": round(genes(agreed["loadings_rna"].values.T), 3),
                "refitted": round(genes(fitted.loadings("rna").values), 3),
                "bound_of_refitted_above_highest": round(bound - float(reached.max())),
                "share_kept": round(agreed.attrs["share_kept"], 2),
                "stability": round(float(agreed["stability"].mean()), 2),
            }
    return report


PARTS = {"loop": loop, "scale": scale, "peers": peers, "batches": batches, "consensus": consensus}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", help="JSON file; parts that are in it and are not run stay.")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    report = {}
    if arguments.out and Path(arguments.out).exists():
        report = json.loads(Path(arguments.out).read_text(encoding="utf-8"))
    report["machine"] = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    for name in arguments.parts.split(","):
        report[name] = PARTS[name]()
        print(json.dumps({name: report[name]}, indent=2), flush=True)
        if arguments.out:
            Path(arguments.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
