"""Fits of the identity/attribute model on a device beside the host's.

On Numba's simulator with NUMBA_ENABLE_CUDASIM=1. Prints, for each case named, the largest difference of any
variable, relative to its largest entry, and which functions of the device were called.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import factorflow
from factorflow.models import IdentityAttribute
from factorflow.models.identity_attribute.kernels import cuda as loops

sys.path.insert(0, str(Path(__file__).parents[1]))
from devices import fits, watched
from frames_in_memory import simulated

LENGTHS = [5, 1, 20, 2, 6]
CASES = {
    "frame": ("frame", {"block_rows": 32}, 0.0),
    "gaps": ("frame", {"block_rows": 32}, 0.1),
    "chain": ("chain", {"block_rows": 32}, 0.0),
    "gaps in chains": ("chain", {"block_rows": 32}, 0.1),
    "one block": ("frame_then_chain", {"block_rows": 64}, 0.0),
    "views": ("frame_then_chain", {"block_rows": 64}, 0.0),
}


def main() -> None:
    """Print the differences of the cases named, and what was called on the device."""
    loops.THREADS = 2  # the simulator makes a thread of each
    used, found = watched(loops), {}
    y = simulated(LENGTHS, 5, 2, 2)
    y = np.concatenate([y, y[:, :2] + 1.0], axis=1)
    sequences = np.repeat(np.arange(len(LENGTHS)), LENGTHS).astype(str)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(sys.argv[1:]):
            way, cut, holdout = CASES[name]
            views = {"y": y[:, :5], "z": y[:, 5:]} if name == "views" else {"y": y}
            if name == "views":
                views["z"] = np.where(np.arange(len(y))[:, None] % 7 == 3, np.nan, views["z"])
            data = factorflow.write_dataset(
                Path(folder) / f"{number}.zarr",
                views,
                dict.fromkeys(views, "gaussian"),
                sequences=sequences,
                **cut,
            )
            model = IdentityAttribute(n_identities=2, factorisation=way, max_iter=2, relevance_after=1)
            found[name] = fits(data, model, holdout=holdout)
    print(json.dumps({"differences": found, "used": sorted(used)}))


if __name__ == "__main__":
    main()
