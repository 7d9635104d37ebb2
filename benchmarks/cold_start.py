"""What a first fit costs where nothing is compiled: seconds of a process, and CPU seconds of each loop.

    python benchmarks/cold_start.py --json benchmarks/results/cold_start.json       # all families
    python benchmarks/cold_start.py probit "mixed, 10 % missing"               # what begins with these words

Each fit is a process of its own with an empty folder for compiled code, then one that finds all in it:
seconds of all of it, from imports to its end, and CPU seconds (of one thread, and of the process that
compiles beside it, whose loops are not listed), since the former say as much of what else the machine does.
Modules of factorflow are compiled to bytecode before, as pip does where it installs them (not to find that
takes half a second of every process). A case that is left out stays in the file as it was.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GAUSSIAN = {"a": ("gaussian", 40), "b": ("gaussian", 30)}
MIXED = {"a": ("gaussian", 40), "b": ("bernoulli", 30), "c": ("poisson", 20)}
SPARSE: dict[str, Any] = {"model": "sparse_gfa", "n_factors": 5}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gaussian": ("sparse_gfa", {"views": GAUSSIAN}, SPARSE),
    "gaussian, 10 % missing": ("sparse_gfa", {"views": GAUSSIAN, "missing": 0.1}, SPARSE),
    "mixed": ("sparse_gfa", {"views": MIXED}, SPARSE),
    "mixed, 10 % missing": ("sparse_gfa", {"views": MIXED, "missing": 0.1}, SPARSE),
}
OTHERS = ("probit", "identity_attribute", "molten_poisson", "molten_normal")
"""Families whose examples are fitted as well."""

FIT = """
import json, sys, time
import factorflow
from numba.core import event

class Times(event.Listener):
    def __init__(self):
        self.begun, self.seconds = [], {}
    def on_start(self, what):
        self.begun.append(time.process_time())
    def on_end(self, what):
        function, seconds = what.data["dispatcher"].py_func, time.process_time() - self.begun.pop()
        if not self.begun:
            name = function.__module__.removeprefix("factorflow.") + "." + function.__name__
            self.seconds.setdefault(name, []).append(round(seconds, 2))

times = Times()
event.register("numba:compile", times)
factorflow.fit(sys.argv[1], json.loads(sys.argv[2]), progress=False)
print(json.dumps(times.seconds))
"""


def run(dataset: str, model: dict[str, Any], cache: str) -> Any:
    """Return the CPU seconds of a process that fits, to its end, and those of each loop that it compiled."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    path = os.pathsep.join(sys.path)
    env = {**os.environ, **threads, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": path}
    command = [sys.executable, "-c", FIT, dataset, json.dumps(model)]
    before = os.times()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    after = os.times()
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    return seconds, json.loads(done.stdout.splitlines()[-1])


def cases() -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the simulator, its settings and the model of each case."""
    from factorflow.models.registry import registered_models

    found = dict(CASES)
    for family in OTHERS:
        for name, example in registered_models()[family].examples().items():
            model = example.config.model_dump(mode="json")
            found[f"{family}, {name}"] = example.simulator, dict(example.data), model
    return found


def measure(simulator: str, data: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return seconds and CPU seconds with nothing and with all compiled, and those of each loop."""
    import factorflow

    with tempfile.TemporaryDirectory() as folder:
        factorflow.simulate(simulator, f"{folder}/data.zarr", 200, seed=1, **data)
        begun = time.perf_counter()
        cold, loops = run(f"{folder}/data.zarr", model, f"{folder}/cache")
        between = time.perf_counter()
        warm, _ = run(f"{folder}/data.zarr", model, f"{folder}/cache")
        ended = time.perf_counter()
    return {
        "s_cold": round(between - begun, 2),
        "cpu_s_cold": round(cold, 2),
        "s_warm": round(ended - between, 2),
        "cpu_s_warm": round(warm, 2),
        "loops": dict(sorted(loops.items(), key=lambda item: -sum(item[1]))),
    }


def main() -> None:
    """Measure the cases asked for, print and write what they take."""
    import factorflow

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("begin", nargs="*", default=[""], help="beginnings of the names of cases")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    path = arguments.json
    results = json.loads(path.read_text()) if path and path.exists() else {"cases": {}}
    compileall.compile_dir(factorflow.__path__[0], quiet=1)
    for name, case in cases().items():
        if not name.startswith(tuple(arguments.begin)):
            continue
        load = round(os.getloadavg()[0], 1)
        found = results["cases"][name] = measure(*case) | {"load": load}
        print(
            f"{name}: {found['cpu_s_cold']:.1f} CPU s in {found['s_cold']:.1f} s, with compiled code"
            f" {found['cpu_s_warm']:.1f} in {found['s_warm']:.1f} s, load {load}"
        )
        for loop, seconds in found["loops"].items():
            types = f" ({len(seconds)} types)" if len(seconds) > 1 else ""
            print(f"    {sum(seconds):5.2f} s  {loop}{types}")
        if path:
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
