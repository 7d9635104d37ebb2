"""CPU seconds of sparse GFA beside those of an earlier version, and what either reaches in them.

Two processes, one of each version, fit the same data in turn, so that both meet the same load. Usage::

    git worktree add ../before 4f1a166        # the last version without smaller models under trial
    python benchmarks/sparse_gfa_before.py --before ../before --data FOLDER --simulator make_multiview.py \\
        --out benchmarks/results/sparse_gfa_before.json [--repeats 3] [--cases NAME ...]

FOLDER holds ``views/*.npz`` as for ``sparse_gfa_reference.py``, the simulator is that of ``sparse_gfa.py``;
cases that lack theirs are left out. Printed for each case: CPU seconds of the whole fit call of either
(the least of the repeats), their ratio, the number of factors of either, how much higher the last recorded
bound of this version is (nats), and after which share of the earlier version's seconds it comes within a nat
of the last bound of that. Bounds of other numbers of factors are compared as they are. Where a bound has many
optima, one fit says little: a case such as "breast_tcga, K=15, hidden 3" is that of "breast_tcga, K=15" with
other entries hidden (seed 3 instead of 0); cases of this kind are fitted if they are named.
So are cases of ``sparse_gfa_truth.py`` from any number of factors, "binary 200 x 40, from 15", and data of
``sparse_gfa_binary.py``, simulated ones too: "spect/Y, 50% hidden, K=15".
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

SIMULATED = ("mixed0", "mixed1", "complete", "missing", "binary")
"""Of ``sparse_gfa.py``."""
TRUTH = ("1000 x 20", "200 x 200", "100 x 5000", "mixed 300 x (60, 40, 40)", "noise 100 x 100")
"""Of ``sparse_gfa_truth.py``, from its first number of factors."""

NEAR = 1.0
"""Nats by which bounds may differ that count as the same."""


def reference(name: str, path: Path, seed: int = 0) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the shown entries of a dataset and the likelihoods of its views."""
    from sparse_gfa_reference import REFERENCE, hide

    rng, shown, kinds, file = np.random.default_rng(seed), {}, {}, np.load(path)
    for view in next(iter(REFERENCE[name].values())):
        values = hide(file[f"Y_{view}"].astype(np.float64), rng)[0]
        shown[view] = values.astype(np.float32)
        kinds[view] = "bernoulli" if np.isin(values[~np.isnan(values)], (0.0, 1.0)).all() else "gaussian"
    return shown, kinds


def cases(data: Path | None, simulated: bool) -> list[str]:
    """Return the names of all cases there are data for."""
    from sparse_gfa_reference import REFERENCE

    real = [f"{name}, K={k}" for name, table in REFERENCE.items() for k in table]
    return [*(SIMULATED if simulated else SIMULATED[2:]), *TRUTH, *(real if data else ())]


def load(case: str, data: Path | None, folder: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return views, likelihoods and the number of factors at the start."""
    from sparse_gfa_truth import CASES, MIXED, simulated

    name, _, start = case.partition(", from ")
    if name in CASES:
        n_rows, sizes, likelihood, true, starts = CASES[name]
        views = simulated(n_rows, sizes, likelihood, true, 900)
        kinds = MIXED if likelihood == "mixed" else (likelihood,) * len(views)
        return views, dict(zip(views, kinds, strict=True)), int(start or starts[0])
    if "% hidden, K=" in case:
        return hidden_binary(case, data)
    if case in SIMULATED:
        from sparse_gfa import dataset

        found, n_factors = dataset(case, folder)
        return found["views"], found["likelihoods"], n_factors
    assert data is not None
    name, _, rest = case.partition(", K=")
    number, _, seed = rest.partition(", hidden ")
    return *reference(name, data / "views" / f"{name}.npz", int(seed or 0)), int(number)


def hidden_binary(case: str, data: Path | None) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return binary data of which most entries are hidden, as ``sparse_gfa_binary.py`` does."""
    import sparse_gfa_binary as binary

    name, share, number = case.split(", ")
    if name.startswith("simulated/"):
        n_rows, n_features = (int(n) for n in name.removeprefix("simulated/").split("x"))
        values = binary.simulated(n_rows, n_features)
    else:
        assert data is not None
        values = next(found for known, found in binary.stored_views(data) if known == name)
    hidden = binary.hidden_entries(values, float(share.partition("%")[0]) / 100, 0)
    shown = np.where(hidden, np.nan, values).astype(np.float32)
    return {"v": shown}, {"v": "bernoulli"}, int(number.removeprefix("K="))


def worker(data: Path | None, folder: Path) -> None:
    """Fit the case of every line read; write a line for each."""
    import factorflow
    from factorflow.engine.events import IterationDone
    from factorflow.models.sparse_gfa import SparseGFA

    path, before = folder / f"{os.getpid()}.zarr", None
    passes: list[tuple[float, float]] = []
    begun = 0.0

    def on_event(event: Any) -> None:
        if isinstance(event, IterationDone):
            passes.append((time.process_time() - begun, event.objective))

    logging.getLogger("factorflow").setLevel(logging.ERROR)
    for line in sys.stdin:
        case = line.strip()
        if case != before:
            views, kinds, n_factors = load(case, data, folder)
            factorflow.write_dataset(path, views, kinds, overwrite=before is not None)
            factorflow.fit(path, SparseGFA(n_factors=n_factors, warmup_iter=4, max_iter=8), progress=False)
            before = case
        passes.clear()
        begun = time.process_time()
        posterior = factorflow.fit(path, SparseGFA(n_factors=n_factors), progress=False, on_event=on_event)
        seconds = time.process_time() - begun
        found = {"seconds": seconds, "passes": passes, "n_factors": int(posterior.scores().shape[1])}
        print(json.dumps(found), flush=True)


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what is printed of a case."""
    fastest = {name: min(found, key=lambda run: run["seconds"]) for name, found in runs.items()}
    before, now = fastest["before"], fastest["now"]
    last = {name: run["passes"][-1][1] for name, run in fastest.items()}
    reached = [seconds for seconds, bound in now["passes"] if bound >= last["before"] - NEAR]
    return {
        "seconds_before": round(before["seconds"], 2),
        "seconds": round(now["seconds"], 2),
        "ratio": round(now["seconds"] / before["seconds"], 2),
        "factors_before": before["n_factors"],
        "factors": now["n_factors"],
        "passes_before": len(before["passes"]),
        "passes": len(now["passes"]),
        "bound_before": round(last["before"], 2),
        "higher_by": round(last["now"] - last["before"], 2),
        "ratio_until_reached": round(reached[0] / before["seconds"], 2) if reached else None,
    }


def main() -> None:
    """Run the table, or one of its processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="folder of the earlier version")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--simulator", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.data, options.worker)
        return
    here, table = Path(__file__).resolve(), {}
    if options.out and options.out.exists():
        table = json.loads(options.out.read_text())
    table["machine"] = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(2) if options.simulator else ():
            command = [sys.executable, "-B", str(options.simulator.resolve()), "--seed", str(seed)]
            command += ["--out", f"{temporary}/mixed{seed}.npz"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        command = [sys.executable, str(here), "--worker", temporary]
        command += ["--data", str(options.data.resolve())] if options.data else []
        fits = {
            name: subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(root.resolve())},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, root in (("before", options.before), ("now", here.parent.parent))
        }
        for case in options.cases or cases(options.data, options.simulator is not None):
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in fits}
            for name, process in [*fits.items()] * options.repeats:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(case + "\n")
                process.stdin.flush()
                runs[name].append(json.loads(process.stdout.readline()))
            table[case] = compared(runs)
            print(f"{case}:", table[case], flush=True)
            if options.out:
                options.out.write_text(json.dumps(table, indent=1) + "\n")
        for process in fits.values():
            process.communicate()


if __name__ == "__main__":
    main()
