"""Sequences of patches: how fast and in how much memory they are cut, and what a model makes of them.

    python benchmarks/patches.py [--parts ingest pairs] [--path DIR] [--out benchmarks/results/patches.json]

- ``ingest``: patches of 12 x 12 pixels, 40 whitened components: windows that move over the two photographs
  that scikit-learn ships, and still and moving windows in a film of 640 x 480 pixels (noise on a disk, .npy).
  Each ingest is a process, of which CPU time and the largest resident memory are taken; twice, with four
  times as many patches (and frames) in the second.
- ``pairs``: the experiment of ``docs/patches.md``. Sequences over the photographs; 16 identities of two
  attributes, started from independent components and at random; how alike the fields of an identity are,
  as a table beside both controls (a random start, columns paired at random) and fields that were not learned.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).parents[1]))  # of the clone, for its examples

import numpy as np  # noqa: E402 - after the number of threads is set

import factorflow as ff  # noqa: E402
from examples.patches import PatchTransform, compare_pairs, write_patches  # noqa: E402

FRAMES = {1: 500, 4: 2000}
"""Frames of the film, by size."""

SEQUENCES = 300
"""Sequences of 50 frames, of the small size."""


def photographs() -> list[Any]:
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images)


def make_film(file: Path, n_frames: int) -> None:
    """Write a film of which each frame is noise."""
    with file.open("wb") as out:  # not mapped: a child begins with the memory of its parent
        header = {"descr": "|u1", "fortran_order": False, "shape": (n_frames, 480, 640)}
        np.lib.format.write_array_header_1_0(out, header)
        for t in range(n_frames):
            out.write(np.random.default_rng(t).bytes(480 * 640))


def cut(what: str, size: int, folder: str) -> dict[str, Any]:
    """Write one dataset in this process, and return what it took."""
    source: Any = photographs() if what == "photographs" else f"{folder}/film{size}.npy"
    speed = 0.0 if what == "film, still" else 1.0
    start, before = time.perf_counter(), time.process_time()
    dataset = write_patches(
        f"{folder}/patches",
        source,
        n_sequences=SEQUENCES * size,
        n_components=40,
        speed=speed,
        overwrite=True,
    )
    cpu = time.process_time() - before
    return {
        "patches": dataset.n_rows,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(cpu, 2),
        "patches_a_cpu_second": round(dataset.n_rows / cpu),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def ingest(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for size, n_frames in FRAMES.items():
        make_film(Path(folder, f"film{size}.npy"), n_frames)
        for what in ("photographs", "film, still", "film, moving"):
            command = [sys.executable, __file__, "--one", what, str(size), "--path", folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.setdefault(what, []).append(json.loads(done.stdout))
        Path(folder, f"film{size}.npy").unlink()
    return found


def pairs(folder: str, iterations: int = 150) -> dict[str, Any]:
    dataset = write_patches(
        f"{folder}/patches",
        photographs(),
        n_sequences=400,
        n_components=40,
        least_contrast=0.3,
        overwrite=True,
    )
    loadings, found = {}, dict[str, Any]()
    for start in ("ica", "random"):
        model = {"model": "identity_attribute", "n_identities": 16, "n_attributes": 2, "start": start}
        before = time.process_time()
        posterior = ff.fit(dataset, {**model, "factorisation": "frame"}, max_iter=iterations, seed=1)
        loadings[start] = posterior.loadings("patches")
        found[start] = {
            "cpu_seconds": round(time.process_time() - before, 1),
            "bound": float(posterior.trace["objective"].values[-1]),
        }
    table = compare_pairs(loadings["ica"], PatchTransform.of(dataset), loadings["random"])
    print(table.round(2).to_string(), file=sys.stderr)
    found["share"] = round(PatchTransform.of(dataset).share, 3)
    found["medians"] = {str(name): row.round(2).to_dict() for name, row in table.iterrows()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=["ingest", "pairs"], default=["ingest", "pairs"])
    parser.add_argument("--path", help="folder with 3 GB of room; a temporary one if left out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cut(options.one[0], int(options.one[1]), options.path)))
        return
    result: dict[str, Any] = {"python": platform.python_version(), "numpy": np.__version__}
    if options.out is not None and options.out.exists():
        result = json.loads(options.out.read_text()) | result
    with tempfile.TemporaryDirectory(dir=options.path) as folder:
        for part in options.parts:
            result[part] = {"ingest": ingest, "pairs": pairs}[part](folder)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
