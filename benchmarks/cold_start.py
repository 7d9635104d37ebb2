"""What a first fit costs where nothing is compiled: CPU seconds of a process, and of each loop it compiles.

    python benchmarks/cold_start.py            # Gaussian and mixed views, complete and with missing entries
    python benchmarks/cold_start.py probit     # the example of another family

Each fit is a process of its own with an empty folder for compiled code, then one that finds all in it. CPU
seconds (one thread), since wall time says as much of what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
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
print(json.dumps([time.process_time(), times.seconds]))
"""


def run(dataset: str, model: dict[str, Any], cache: str) -> Any:
    """Return the CPU seconds of a process that fits, and those of each loop that it compiled."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    path = os.pathsep.join(sys.path)
    env = {**os.environ, **threads, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": path}
    command = [sys.executable, "-c", FIT, dataset, json.dumps(model)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help="families whose first example is fitted instead")
    import factorflow
    from factorflow.models.registry import registered_models

    cases = dict(CASES)
    if families := parser.parse_args().families:
        cases = {}
        for name in families:
            example = next(iter(registered_models()[name].examples().values()))
            cases[name] = example.simulator, dict(example.data), example.config.model_dump(mode="json")
    for name, (simulator, data, model) in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            factorflow.simulate(simulator, f"{folder}/data.zarr", 200, seed=1, **data)
            cold, loops = run(f"{folder}/data.zarr", model, f"{folder}/cache")
            warm, _ = run(f"{folder}/data.zarr", model, f"{folder}/cache")
        print(f"{name}: {cold:.1f} s, {warm:.1f} s with compiled code")
        for loop, seconds in sorted(loops.items(), key=lambda item: -sum(item[1])):
            print(
                f"    {sum(seconds):5.2f} s  {loop}"
                + (f" ({len(seconds)} types)" if len(seconds) > 1 else "")
            )


if __name__ == "__main__":
    main()
