"""Sparse GFA of log-normalised counts: rows by their entries that are not zero, beside dense rows.

    python benchmarks/sparse_gfa_entries.py [--samples 100000] [--features 5000] [--factors 20] [--out FILE]
    python benchmarks/sparse_gfa_entries.py --samples 1000000 --workers 2

Counts are those of `poisson_factors.py`: negative binomial, 7 % of them not zero. Each fit is a process of
its own, of one thread, with 2 GiB for blocks and what is kept of them. Seconds are those of the processor, so
that neighbours on the machine count less: a pass is the median of those of the last stage. The first part
multiplies the rows of one block alone, without reading.

Parts "entries_reread" and "programs_reread" are passes of which no block is kept: each is read and decoded
again, and "entries_kept" and "programs_kept" the same with all of them kept, for a few passes.
Nanoseconds are those of a pass for each entry that is not zero. Parts "poisson" and "negative_binomial" are
fits of the counts with a logarithmic link and size factors; theirs are for each entry, zeros too.

Parts "files" and "files_dense" are fits of four files that lack a tenth of the features each, not the same,
by entries and dense, with the seconds of the processor that joining them and taking logarithms took.

Part "mofapy2" is a fit of the same logarithms by mofapy2 (requirements-sparse_gfa.txt), its defaults::

    python benchmarks/sparse_gfa_entries.py --samples 8000 --features 2000 --parts entries,mofapy2

With ``--workers`` counts of two batches are simulated into an .h5ad file and ingested, a block in memory at a
time, and each part is a fit on so many Dask workers of 2 GiB each, of ``--max-iter`` passes of its last stage
at most: "entries", and "poisson_factors", programs of the counts with ``--factors`` programs. Seconds are
those of the wall then, beside them those of all processors, and memory is that of the largest worker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from poisson_factors import simulate, write_h5ad

import factorflow
from factorflow.models import PoissonFactors, SparseGFA

FOLDER = Path(tempfile.gettempdir()) / "factorflow-sparse-gfa-entries"
"""Where stores stay between runs."""
REPEATS = 9
K = 15
"""Programs that are simulated, beside a common one."""
MEMORY = "2GiB"
FILES = 4
"""Files of the parts that are named after them."""
LINKED = ("poisson", "negative_binomial")
"""Parts that are fits of the counts with a logarithmic link, whose passes go over all entries."""
SHORT, PROGRAMS = 12, 16
"""Passes of a stage where blocks are read again, and programs then."""


def store_of(n: int, d: int) -> Path:
    """Return a dataset of counts and their logarithms; it is made once."""
    path = FOLDER / f"{n}-{d}.zarr"
    if not path.exists():
        counts = simulate(n, d, K)["counts"]
        factorflow.write_dataset(path, {"rna": counts}, {"rna": "poisson"}, layout={"rna": "sparse"})
        factorflow.add_view(path, "log", of="rna", transform="log1p")
    return path


def store_of_files(n: int, d: int) -> tuple[Path, float]:
    """Return a dataset like `store_of` of files that lack features, made anew, and the seconds of that."""
    import anndata
    import pandas as pd

    path, counts = FOLDER / f"{n}-{d}-files.zarr", simulate(n, d, K)["counts"].tocsr()
    names = [
        pd.Index(np.char.add(name, np.arange(size).astype(str)).astype(object))
        for name, size in (("s", n), ("g", d))
    ]
    parts = []
    for at, rows in enumerate(np.array_split(np.arange(n), FILES)):
        features = np.flatnonzero(np.arange(d) % 10 != at)
        frames = (pd.DataFrame(index=name[some]) for name, some in zip(names, (rows, features), strict=True))
        parts.append(anndata.AnnData(counts[rows[0] : rows[-1] + 1][:, features], *frames))
    begun = time.process_time()
    factorflow.write_dataset(path, {"rna": parts}, {"rna": "poisson"}, overwrite=True)
    factorflow.add_view(path, "log", of="rna", transform="log1p")
    return path, round(time.process_time() - begun, 1)


def store_of_file(n: int, d: int, save: Callable[[dict[str, Any]], None]) -> Path:
    """Return a dataset like `store_of`, ingested from an .h5ad file; each is made once."""
    path, source = FOLDER / f"{n}-{d}.zarr", FOLDER / f"{n}-{d}.h5ad"
    if not source.exists():
        write_h5ad(source, n, d, K, seed=0, batches=2)
    if not path.exists():
        for what, make in (
            (
                "ingest",
                lambda: factorflow.write_dataset(path, {"rna": source}, likelihoods={"rna": "poisson"}),
            ),
            ("log1p", lambda: factorflow.add_view(path, "log", of="rna", transform="log1p")),
        ):
            cpu, begun = time.process_time(), time.time()
            make()
            save(
                {
                    what: {
                        "seconds": round(time.time() - begun, 1),
                        "cpu_seconds": round(time.process_time() - cpu, 1),
                        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                    }
                }
            )
    return path


def entries_of(path: Path) -> int:
    """Return how many counts of a dataset are not zero."""
    data = factorflow.open_dataset(path)
    blocks = (data.read(i, ["rna"], sparse=["rna"])[0].data["rna"] for i in range(data.n_blocks))
    return sum(block.entries.size for block in blocks)


def shape_of(path: Path) -> tuple[int, int]:
    """Return the numbers of cells and genes of a dataset."""
    dataset = factorflow.open_dataset(path)
    return dataset.n_rows, len(dataset.features("rna"))


def products(path: Path, k: int) -> dict[str, float]:
    """Return nanoseconds an entry (dense: of all; else of those not zero) of the two products of a pass."""
    from factorflow.kernels.linalg import pad_columns
    from factorflow.models.sparse_gfa.kernels import products as gfa

    dataset = factorflow.open_dataset(path)
    rows = dataset.read(0, ["log"], sparse=["log"])[0].data["log"]
    dense = dataset.block(0, ["log"]).data["log"]
    n, d = dense.shape
    rng, one, zero = np.random.default_rng(0), np.ones(d), np.zeros(d)
    left, right = rng.standard_normal((d, k + 1)), rng.standard_normal((n, k + 1))
    out: dict[str, float] = {}
    for name, values, count in (("entries", rows, rows.entries.size), ("dense", dense, dense.size)):
        centred = gfa.centred(values, zero, one, np.float32)
        width = (
            (lambda m: m.astype(np.float32)) if name == "entries" else (lambda m: pad_columns(m, np.float32))
        )
        for what, product in (
            ("rows", lambda c=centred, w=width: c @ w(left)),
            ("features", lambda c=centred, w=width: c.T @ w(right)),
        ):
            seconds = []
            for _ in range(REPEATS):
                begun = time.process_time()
                product()
                seconds.append(time.process_time() - begun)
            out[f"{name}_{what}"] = round(1e9 * min(seconds) / count, 2)
    return out


def watch(watched: dict[int, tuple[int, float]]) -> None:
    """Keep the largest memory (MiB) and the processor seconds of all processes of this one, by number."""
    import psutil

    while True:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError, StopIteration):
                lines = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8").splitlines()
                peak = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
                watched[child.pid] = peak, sum(child.cpu_times()[:2])
        time.sleep(0.2)


def model_of(part: str, k: int, max_iter: int) -> Any:
    """Return the model of a part."""
    bounded: dict[str, Any] = {"max_iter": max_iter} if max_iter else {}
    if part == "programs":
        return PoissonFactors(views=("rna",), n_factors=PROGRAMS, settling_iter=max_iter, max_iter=max_iter)
    if part == "poisson_factors":
        settling = max_iter or 60
        return PoissonFactors(views=("rna",), n_factors=k, batch="batch", settling_iter=settling, **bounded)
    if part in LINKED:
        return SparseGFA(
            views=("rna",), n_factors=k, likelihoods={"rna": part}, size_factors="total", **bounded
        )
    return SparseGFA(views=("log",), n_factors=k, **bounded)


def fit(
    path: Path, k: int, part: str, workers: int = 0, max_iter: int = 0, *, checkpoints: bool = False
) -> dict[str, Any]:
    """Return seconds and memory of a fit in this process, or on workers."""
    clock = time.time if workers else time.process_time
    part, _, blocks = part.partition("_") if part.endswith(("_reread", "_kept")) else (part, "", "")
    if blocks:
        max_iter = max_iter or SHORT
    if blocks == "reread":
        from factorflow.engine import source

        source._BlockCache.spend = lambda self, what, size: False  # type: ignore[method-assign]
    made: dict[str, float] = {}
    if part.startswith("files"):
        path, made["ingest"] = store_of_files(*shape_of(path))
    if part.endswith("dense"):
        SparseGFA.sparse_views = lambda self, meta: ()  # type: ignore[method-assign]
    at: list[tuple[str, float]] = []
    entered: list[tuple[str, float]] = []

    def listen(event: Any) -> None:
        if type(event).__name__ == "IterationDone":
            at.append((event.stage, clock()))
        elif type(event).__name__ == "StageEntered":
            entered.append((event.stage, clock()))

    begun, watched = clock(), dict[int, tuple[int, float]]()
    if workers:
        threading.Thread(target=watch, args=(watched,), daemon=True).start()
    model = model_of(part, k, max_iter)
    place: dict[str, Any] = {"executor": "dask", "workers": workers} if workers else {}
    if checkpoints:
        place |= {"out": FOLDER / f"{part}.fit", "overwrite": True}
    posterior = factorflow.fit(path, model, memory_limit=MEMORY, on_event=listen, progress=False, **place)
    seconds = clock() - begun
    ends = [began for _, began in entered[1:]] + [clock()]
    last = at[-1][0]
    passes = [b - a for (_, a), (stage, b) in zip(at, at[1:], strict=False) if stage == last]
    if blocks:
        return {
            "ns_an_entry": round(1e9 * float(np.median(passes)) / entries_of(path), 2),
            "passes": len(passes),
        }
    summary, size = posterior.summary(), int(np.prod(shape_of(path)))
    more = {
        "cpu_seconds": round(time.process_time() + sum(cpu for _, cpu in watched.values()), 1),
        "MiB_here": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    return {
        "seconds": round(seconds, 1),
        **made,
        "stages": {stage: round(end - began, 1) for (stage, began), end in zip(entered, ends, strict=True)},
        **(more if watched else {}),
        "pass": round(float(np.median(passes)), 3),
        **({"ns_of_all_entries": round(1e9 * float(np.median(passes)) / size, 1)} if part in LINKED else {}),
        "passes": len(at),
        "n_factors": summary["n_factors"],
        "objective": summary["objective"],
        "explained": round(float(posterior.variance_explained_total()[0]), 4),
        "MiB": max(
            (mib for mib, _ in watched.values()),
            default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        ),
    }


def fit_mofapy2(path: Path, k: int) -> dict[str, Any]:
    """Return seconds and memory of a fit by mofapy2 in this process, its defaults."""
    from mofapy2.run.entry_point import entry_point

    dataset = factorflow.open_dataset(path)
    y = np.concatenate([dataset.block(i, ["log"]).data["log"] for i in range(dataset.n_blocks)]).astype(float)
    begun, peer = time.process_time(), entry_point()
    peer.set_data_options(use_float32=False)
    peer.set_data_matrix([[y]], likelihoods=["gaussian"], views_names=["log"])
    peer.set_model_options(factors=k)
    peer.set_train_options(seed=42, quiet=True)
    peer.build()
    peer.run()
    seconds = time.process_time() - begun
    scores = np.asarray(peer.model.getNodes()["Z"].getExpectation())
    loadings = peer.model.getExpectations()["W"][0]
    loadings = np.asarray(loadings["E"] if isinstance(loadings, dict) else loadings)
    y -= y.mean(axis=0)
    left = np.square(y - scores @ loadings.T).sum() / np.square(y).sum()
    passes = len(peer.model.getTrainingStats()["time"]) - 1
    return {
        "seconds": round(seconds, 1),
        "pass": round(seconds / passes, 3),
        "passes": passes,
        "n_factors": scores.shape[1],
        "explained": round(1.0 - float(left), 4),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def save(out: str | None, name: str, report: dict[str, Any]) -> None:
    """Print a report, and put it into a file."""
    print(json.dumps({name: report}), flush=True)
    if out:
        path = Path(out)
        whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        whole[name] = whole.get(name, {}) | report
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=5000)
    parser.add_argument("--factors", type=int, default=20)
    parser.add_argument(
        "--parts", help="by default products,entries,dense; on workers entries,poisson_factors"
    )
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--max-iter", type=int, default=0, help="0: to convergence.")
    parser.add_argument("--checkpoints", action="store_true", help="write checkpoints and the posterior")
    parser.add_argument("--out", help="JSON file; what is in it of other sizes stays.")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    n, d, k, workers = arguments.samples, arguments.features, arguments.factors, arguments.workers
    name = f"{n} x {d}" + (f", {workers} workers" if workers else "")
    save_part = partial(save, arguments.out, name)
    path = store_of_file(n, d, save_part) if workers else store_of(n, d)
    if arguments.only:
        part = arguments.only
        alone = {"products": products, "mofapy2": fit_mofapy2}.get(part)
        done = (
            alone(path, k)
            if alone
            else fit(path, k, part, workers, arguments.max_iter, checkpoints=arguments.checkpoints)
        )
        print(json.dumps(done))
        return 0
    save_part(
        {
            "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "nonzero": entries_of(path),
        }
    )
    options = ("samples", "features", "factors", "workers", "max_iter")
    given = [f"--{option.replace('_', '-')}={getattr(arguments, option)}" for option in options]
    given += ["--checkpoints"] if arguments.checkpoints else []
    parts = arguments.parts or ("entries,poisson_factors" if workers else "products,entries,dense")
    for part in parts.split(","):
        command = [sys.executable, __file__, *given, "--only", part]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        factors = PROGRAMS if part.startswith("programs_") else k
        save_part({part: {"factors": factors} | json.loads(lines.strip().splitlines()[-1])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
