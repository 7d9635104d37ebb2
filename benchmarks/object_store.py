"""A pass over a dataset in an object store beside one over the same dataset on a disk; needs moto's server.

    pip install 'factorflow[cloud]' 'moto[s3]' flask flask-cors
    python benchmarks/object_store.py [--rows 60000] [--json benchmarks/results/object_store.json]

Sparse GFA of Gaussian data on this machine, in this process; the server of the store is a process beside it.
``first_s`` is up to the end of the first iteration, in which all blocks are read; ``pass_s`` the median of
the later ones (``pass_cpu_s``: of the CPU time of this process, without the server's), once with memory for
all blocks and once with little: then many are read again each time (``read_mb_a_pass``). Disk and store take
turns, and of each number the least of all turns counts: other work on the machine only adds to it.
"""

# ruff: noqa: E402  (threads are limited before anything is imported)

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import platform
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

import factorflow
from factorflow.engine.source import _CACHES, READING
from factorflow.models import SparseGFA
from factorflow.storage.location import as_location
from factorflow.storage.publish import upload

N_FEATURES = 1000


def serve() -> tuple[subprocess.Popen[bytes], str]:
    """Start moto's server with a bucket; return it and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}
    for _ in range(200):
        try:
            urlopen(Request(f"{address}/bench", method="PUT", headers=headers)).close()
            return server, address
        except OSError:
            time.sleep(0.1)
    raise SystemExit("moto's server does not answer")


def passes(dataset: Any, memory: str) -> dict[str, float]:
    """Return seconds to the end of the first iteration, those of a later one, and the megabytes it read."""
    _CACHES.clear()  # blocks of the same data from the other place, and the room that there was for them
    ends: list[tuple[float, float, int]] = []

    def note(event: Any) -> None:
        if type(event).__name__ == "IterationDone":
            ends.append((time.perf_counter(), time.process_time(), READING.bytes))

    begun = time.perf_counter()
    config = SparseGFA(n_factors=10, warmup_iter=4, max_iter=4, tol=1e-12, drop=0.0)
    factorflow.fit(dataset, config, memory_limit=memory, on_event=note, progress=False)
    wall, cpu, read = np.diff(np.array(ends[:8]), axis=0).T
    found = {"first_s": ends[0][0] - begun, "pass_s": np.median(wall), "pass_cpu_s": np.median(cpu)}
    return {name: round(float(value), 4) for name, value in found.items()} | {
        "read_mb_a_pass": round(float(np.median(read)) / 1e6)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "rows": args.rows, "turns": args.turns}
    found["machine"] = f"{os.cpu_count()} cores of {platform.machine()}, the server on the same"
    server, address = serve()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            views, path = {"y": ("gaussian", N_FEATURES)}, Path(folder) / "d.zarr"
            local = factorflow.simulate("sparse_gfa", path, args.rows, views=views, n_factors=5)
            upload(path, as_location("s3://bench/d.zarr"), replace=False)
            there = factorflow.open_dataset("s3://bench/d.zarr")
            found["megabytes"] = round(4e-6 * args.rows * N_FEATURES)
            passes(local, "8GiB")  # kernels are compiled
            for name, memory in (("fits", "8GiB"), ("read_each_pass", "410MB")):
                turns = [(passes(local, memory), passes(there, memory)) for _ in range(args.turns)]
                found[name] = {"memory_limit": memory, "load": round(os.getloadavg()[0], 1)}
                for i, which in enumerate(("disk", "store")):
                    found[name][which] = {key: min(turn[i][key] for turn in turns) for key in turns[0][i]}
                for key in ("first_s", "pass_s", "pass_cpu_s"):
                    ratio = found[name]["store"][key] / found[name]["disk"][key]
                    found[name][f"ratio_{key}"] = round(ratio, 3)
    finally:
        server.terminate()
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
