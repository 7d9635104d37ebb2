"""What a checkpoint costs: run it on two versions of the package, in turns, and compare what they print.

    python benchmarks/checkpoints.py [--json FILE]

Each run is made twice in each turn: with a checkpoint after every iteration and with none. The difference
over the number of iterations is what one takes; beside it, what it writes. Medians over the turns, on one
core.
"""

# ruff: noqa: E402  (threads are limited before anything is imported)

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import factorflow

RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sparse_gfa": (
        "sparse_gfa",
        {"n_samples": 40_000, "views": {"a": ("gaussian", 60), "b": ("gaussian", 40)}, "n_factors": 5},
        {"model": "sparse_gfa", "n_factors": 10, "warmup_iter": 5, "max_iter": 20, "tol": 1e-12},
    ),
    "probit, draws of factors": (
        "binary",
        {"n_samples": 4000, "n_features": 60, "n_factors": 5},
        {"model": "probit", "n_factors": 5, "n_burn_in": 4, "n_draws": 16, "store_factors": True},
    ),
}
"""Simulator, data, model."""


def seconds(dataset: Any, config: Any, out: Path, every: int) -> tuple[float, int, int]:
    """Return the time from the first to the last iteration, their number, and the bytes of a checkpoint."""
    times: list[float] = []
    size = 0

    def note(event: Any) -> None:
        nonlocal size
        if type(event).__name__ == "IterationDone":
            times.append(time.perf_counter())
        elif type(event).__name__ == "CheckpointWritten":
            files = Path(f"{out}.run").rglob("*")
            size = max(size, sum(file.stat().st_size for file in files if file.is_file()))

    options: dict[str, Any] = {"checkpoint_every": every, "on_event": note, "out": out, "overwrite": True}
    factorflow.fit(dataset, config, seed=0, executor="local", **options)
    return times[-1] - times[0], len(times) - 1, size


def main() -> None:
    """Measure all runs, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, Any] = {"machine": platform.machine(), "load": os.getloadavg()}
    for name, (simulator, data, config) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            dataset = factorflow.simulate(simulator, Path(folder) / "d.zarr", seed=1, **data)
            out, costs, plain = Path(folder) / "p.zarr", [], []
            for turn in range(args.turns + 1):
                without, n, _ = seconds(dataset, config, out, 10**6)
                with_, n, size = seconds(dataset, config, out, 1)
                if turn:  # the first compiles
                    costs.append((with_ - without) / n)
                    plain.append(without / n)
            results[name] = {
                "ms_a_checkpoint": 1e3 * statistics.median(costs),
                "ms_an_iteration_with_one": 1e3 * (statistics.median(costs) + statistics.median(plain)),
                "ms_an_iteration_without": 1e3 * statistics.median(plain),
                "mib_in_the_folder_at_most": size / 2**20,
            }
    text = json.dumps(results, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
