"""Sparse group factor analysis beside mofapy2 and scikit-learn, and beside the limits of the machine.

One thread each, one process each, the same data, in one run::

    python -m venv peers && peers/bin/pip install -r benchmarks/requirements-sparse_gfa.txt
    python benchmarks/sparse_gfa.py --simulator make_multiview.py --peer-python peers/bin/python \\
        --out benchmarks/results/sparse_gfa.json [--quick] [--seeds 0 1 2 3 4]

Without ``--peer-python`` only ours is measured. ``--simulator`` is a script that writes an .npz with
``Y_<view>`` (NaN where hidden), ``Yfull_<view>``, ``Z_true`` for ``--out FILE --seed S``.

CPU seconds are those of the process, of the whole fit call after a short call that compiles and imports; the
seconds of a pass are the median over passes. "Correlation" is between true and estimated scores, factors
matched one to one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
os.environ.update(dict.fromkeys(THREADS, "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

Array = Any
K_MIXED, K_COMPLETE, ROWS_COMPLETE = 15, 20, 5000


def read(path: Path) -> dict[str, Any]:
    """Return views (NaN where hidden), complete views, likelihoods and true scores."""
    with np.load(path) as file:
        names = [str(n) for n in file["view_names"]]
        return {
            "views": {n: file[f"Y_{n}"] for n in names},
            "full": {n: file[f"Yfull_{n}"] for n in names},
            "likelihoods": dict(zip(names, map(str, file["likelihoods"]), strict=True)),
            "scores": file["Z_true"],
        }


def complete_data(n_rows: int, n_features: int, n_factors: int = 10) -> dict[str, Any]:
    """Return one complete Gaussian view."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((n_rows, n_factors))
    loadings = rng.standard_normal((n_features, n_factors)) * (rng.random((n_features, n_factors)) < 0.3)
    values = (scores @ loadings.T + 2.0 * rng.standard_normal((n_rows, n_features))).astype(np.float32)
    return {"views": {"v": values}, "full": {"v": values}, "likelihoods": {"v": "gaussian"}, "scores": scores}


def with_missing(data: dict[str, Any], fraction: float) -> dict[str, Any]:
    """Return the same data with entries missing at random."""
    rng = np.random.default_rng(1)
    views = {
        n: np.where(rng.random(y.shape) < fraction, np.nan, y).astype(np.float32)
        for n, y in data["views"].items()
    }
    return {**data, "views": views}


def binary_data(n_rows: int, n_features: int) -> dict[str, Any]:
    """Return one complete binary view."""
    data = complete_data(n_rows, n_features)
    values = (data["views"]["v"] > 0).astype(np.float32)
    return {**data, "views": {"v": values}, "full": {"v": values}, "likelihoods": {"v": "bernoulli"}}


def auc(y: Array, p: Array) -> float:
    """Return the area under the ROC curve."""
    order = np.argsort(p, kind="stable")
    ranks = np.empty(len(p))
    ranks[order] = np.arange(1, len(p) + 1)
    positive = y > 0
    n = int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))


def quality(data: dict[str, Any], scores: Array, predict: Callable[[str], Array]) -> dict[str, Any]:
    """Return recovery of the true factors, and held-out R2 or AUC and log-loss by view."""
    from scipy.optimize import linear_sum_assignment

    truth = data["scores"]
    k = scores.shape[1]
    table = np.abs(np.corrcoef(scores.T, truth.T)[:k, k:])
    matched = table[linear_sum_assignment(-np.nan_to_num(table))]
    out: dict[str, Any] = {
        "correlation": float(matched.mean()),
        "recovered_90": int((matched > 0.9).sum()),
        "recovered_95": int((matched > 0.95).sum()),
    }
    for name, shown in data["views"].items():
        full = data["full"][name]
        hidden = np.isnan(shown) & ~np.isnan(full)
        if not hidden.any():
            continue
        y, fit = full[hidden].astype(float), np.asarray(predict(name), dtype=float)[hidden]
        if data["likelihoods"][name] == "gaussian":
            mean = np.broadcast_to(np.nanmean(shown, axis=0), shown.shape)[hidden]
            out[f"r2_{name}"] = float(1 - ((y - fit) ** 2).sum() / ((y - mean) ** 2).sum())
        else:
            p = np.clip(fit, 1e-4, 1 - 1e-4)
            out[f"auc_{name}"] = auc(y, fit)
            out[f"log_loss_{name}"] = float(-np.mean(np.where(y > 0, np.log(p), np.log1p(-p))))
    return out


def peak_megabytes() -> float:
    """Return the most memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_ours(data: dict[str, Any], n_factors: int, max_iter: int | None) -> dict[str, Any]:
    """Fit with factorflow."""
    import factorflow
    from factorflow.engine.events import IterationDone
    from factorflow.models.sparse_gfa import SparseGFA

    ticks: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, IterationDone):
            ticks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        store = factorflow.write_dataset(Path(folder) / "data.zarr", data["views"], data["likelihoods"])
        model = SparseGFA(n_factors=n_factors)
        factorflow.fit(store, model, max_iter=2)
        factorflow.fit(store, SparseGFA(n_factors=n_factors, warmup_iter=1, max_iter=1))
        store = factorflow.open_dataset(Path(folder) / "data.zarr")
        before = peak_megabytes()
        begun = time.process_time()
        posterior = factorflow.fit(store, model, max_iter=max_iter, on_event=on_event)
        seconds = time.process_time() - begun
        tree = posterior.tree["variational"]
        scores = tree["scores"].to_numpy()

        def predict(name: str) -> Array:
            x = scores @ tree[f"loadings_{name}"].to_numpy().T + tree[f"intercept_{name}"].to_numpy()
            return x if data["likelihoods"][name] == "gaussian" else 1 / (1 + np.exp(-x))

        return {
            "seconds": seconds,
            "passes": len(ticks),
            "seconds_a_pass": statistics.median(np.diff(ticks)) if len(ticks) > 1 else None,
            "seconds_by_pass": [float(s) for s in np.diff(ticks)],
            "n_factors": scores.shape[1],
            "peak_megabytes": peak_megabytes(),
            "peak_megabytes_before": before,
            **quality(data, scores, predict),
        }


def run_mofapy2(data: dict[str, Any], n_factors: int, max_iter: int | None) -> dict[str, Any]:
    """Fit with mofapy2, its defaults."""
    from mofapy2.run.entry_point import entry_point

    def fit(iterations: int) -> tuple[Any, float]:
        model = entry_point()
        matrices = [[y.astype(float)] for y in data["views"].values()]
        model.set_data_options(use_float32=False)
        model.set_data_matrix(
            matrices, likelihoods=list(data["likelihoods"].values()), views_names=list(data["views"])
        )
        model.set_model_options(factors=n_factors)
        model.set_train_options(iter=iterations, seed=42, quiet=True)
        model.build()
        begun = time.process_time()
        model.run()
        return model, time.process_time() - begun

    fit(2)
    begun = time.process_time()
    model, running = fit(max_iter or 1000)
    seconds = time.process_time() - begun
    nodes = model.model.getNodes()
    scores = np.asarray(nodes["Z"].getExpectation())
    weights = dict(zip(data["views"], model.model.getExpectations()["W"], strict=True))
    # mofapy2 has no intercept: it gets the feature's mean, or the log-odds of its frequency
    intercepts = {n: np.nanmean(y, axis=0) for n, y in data["views"].items()}
    for name, likelihood in data["likelihoods"].items():
        if likelihood == "bernoulli":
            frequency = np.clip(intercepts[name], 1e-3, 1 - 1e-3)
            intercepts[name] = np.log(frequency / (1 - frequency))

    def predict(name: str) -> Array:
        w = weights[name]
        x = scores @ np.asarray(w["E"] if isinstance(w, dict) else w).T + intercepts[name]
        return x if data["likelihoods"][name] == "gaussian" else 1 / (1 + np.exp(-x))

    passes = len(model.model.getTrainingStats()["time"]) - 1
    return {
        "seconds": seconds,
        "passes": passes,
        "seconds_a_pass": running / max(passes, 1),
        "n_factors": scores.shape[1],
        "peak_megabytes": peak_megabytes(),
        **quality(data, scores, predict),
    }


def run_sklearn(data: dict[str, Any], n_factors: int, max_iter: int | None) -> dict[str, Any]:
    """Fit scikit-learn's FactorAnalysis to all views side by side, means in place of missing entries."""
    from sklearn.decomposition import FactorAnalysis

    names = list(data["views"])
    means = {n: np.nanmean(data["views"][n], axis=0) for n in names}
    stacked = np.concatenate([np.where(np.isnan(y), means[n], y) for n, y in data["views"].items()], axis=1)

    def fit(iterations: int) -> Any:
        return FactorAnalysis(n_factors, max_iter=iterations, svd_method="randomized", random_state=0).fit(
            stacked
        )

    fit(2)
    begun = time.process_time()
    model = fit(max_iter or 1000)
    scores = model.transform(stacked)
    seconds = time.process_time() - begun
    fitted = scores @ model.components_ + model.mean_
    cuts = np.cumsum([0] + [len(means[n]) for n in names])
    return {
        "seconds": seconds,
        "passes": int(model.n_iter_),
        "seconds_a_pass": seconds / max(int(model.n_iter_), 1),
        "n_factors": n_factors,
        "peak_megabytes": peak_megabytes(),
        **quality(
            data, scores, lambda name: fitted[:, cuts[names.index(name)] : cuts[names.index(name) + 1]]
        ),
    }


def best_of(run: Callable[[], Any], times: int = 7) -> float:
    """Return the least CPU seconds of a call."""
    run()
    found = []
    for _ in range(times):
        begun = time.process_time()
        run()
        found.append(time.process_time() - begun)
    return min(found)


def machine_limits() -> dict[str, float]:
    """Return single-precision GEMM speed and memory bandwidth of one thread, now."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1500, 1500)).astype(np.float32)
    x, y = np.ones(8_000_000), np.ones(8_000_000)
    out = np.empty_like(x)

    def triad() -> None:
        np.multiply(y, 3.0, out=out)
        np.add(x, out, out=out)

    return {
        "sgemm_gflops": 2 * 1500**3 / best_of(lambda: a @ a) / 1e9,
        "triad_gbytes": 5 * 8 * len(x) / best_of(triad) / 1e9,
    }


def gemm_limit(n_rows: int, n_features: int, n_factors: int, block_rows: int) -> float:
    """Return seconds of the products of one pass over a complete Gaussian view: Y W and Y' Z by block."""
    rng = np.random.default_rng(0)
    width = -(-(n_factors + 1) // 8) * 8
    y = rng.standard_normal((n_rows, n_features)).astype(np.float32)
    w, z = rng.random((n_features, width), dtype=np.float32), rng.random((n_rows, width), dtype=np.float32)

    def run() -> None:
        for start in range(0, n_rows, block_rows):
            cut = slice(start, start + block_rows)
            _ = y[cut] @ w
            _ = y[cut].T @ z[cut]

    return best_of(run)


WORKERS = {"ours": run_ours, "mofapy2": run_mofapy2, "sklearn": run_sklearn}


def dataset(name: str, folder: Path) -> tuple[dict[str, Any], int]:
    """Return a benchmark's data and number of factors."""
    if name.startswith("mixed"):
        return read(folder / f"{name}.npz"), K_MIXED
    n_features = 2000
    if name == "complete":
        return complete_data(ROWS_COMPLETE, n_features), K_COMPLETE
    if name == "missing":
        return with_missing(complete_data(ROWS_COMPLETE, n_features), 0.1), K_COMPLETE
    return binary_data(ROWS_COMPLETE, 500), K_COMPLETE


def spawn(python: str, worker: str, name: str, folder: Path, max_iter: int | None) -> dict[str, Any]:
    """Run one worker in a process of its own."""
    command = [
        python,
        str(Path(__file__).resolve()),
        "--worker",
        worker,
        "--case",
        name,
        "--folder",
        str(folder),
    ]
    if max_iter:
        command += ["--max-iter", str(max_iter)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def show(name: str, worker: str, found: dict[str, Any]) -> None:
    """Print one line."""
    numbers = {k: v for k, v in found.items() if not isinstance(v, list)}
    text = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers.items())
    print(f"{name:10s} {worker:8s} {text or found}", flush=True)


def main() -> None:
    """Run the benchmark, or one worker of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulator", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--quick", action="store_true", help="seed 0 and few passes of the peers")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--max-iter", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        data, n_factors = dataset(a.case, a.folder)
        with contextlib.redirect_stdout(sys.stderr):
            found = WORKERS[a.worker](data, n_factors, a.max_iter)
        print(json.dumps(found))
        return
    results: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "limits": machine_limits(),
    }
    print("limits", results["limits"], "load", os.getloadavg(), flush=True)
    seeds = a.seeds[:1] if a.quick else a.seeds
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cases = [] if a.simulator is None else [f"mixed{seed}" for seed in seeds]
        for seed, name in zip(seeds, cases, strict=False):
            command = [
                sys.executable,
                a.simulator.name,
                "--out",
                str(folder / f"{name}.npz"),
                "--seed",
                str(seed),
            ]
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            subprocess.run(
                command, cwd=a.simulator.parent, check=True, stdout=subprocess.DEVNULL, env=environment
            )
        for name in [*cases, "complete", "missing", "binary"]:
            mixed = name.startswith("mixed")
            results[name] = {"ours": spawn(sys.executable, "ours", name, folder, None if mixed else 12)}
            show(name, "ours", results[name]["ours"])
            if a.peer_python and (mixed or name == "complete"):
                few = None if mixed and not a.quick else 10
                results[name]["mofapy2"] = spawn(a.peer_python, "mofapy2", name, folder, few)
                show(name, "mofapy2", results[name]["mofapy2"])
                results[name]["sklearn"] = spawn(
                    a.peer_python, "sklearn", name, folder, 50 if a.quick else None
                )
                show(name, "sklearn", results[name]["sklearn"])
    results["gemm_seconds_a_pass_complete"] = gemm_limit(ROWS_COMPLETE, 2000, K_COMPLETE, 512)
    results["limits_after"] = machine_limits()
    print(
        "GEMMs of a complete pass", results["gemm_seconds_a_pass_complete"], "limits", results["limits_after"]
    )
    if a.out:
        a.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
