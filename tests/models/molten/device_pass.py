"""Fits of molten components on a device beside the host's.

On Numba's simulator with NUMBA_ENABLE_CUDASIM=1. Prints, for each case named, the largest difference of any
variable, relative to its largest entry.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import factorflow
from factorflow.models import MoltenNormal, MoltenPoisson
from factorflow.models.molten.kernels import cuda as molten_cuda

sys.path.insert(0, str(Path(__file__).parents[1]))
from devices import fits, watched

FEW = {"n_components": 3, "n_starts": 2, "start_iter": 2, "max_iter": 2, "drop": 0.0}
CASES = {
    "counts": (MoltenPoisson, "y ~ C(a) + C(b) + C(c) + offset(log(t))", {}),
    "single": (MoltenPoisson, "y ~ C(a) + C(b)", {"table_bits": 32}),
    "mixed": (MoltenPoisson, "y ~ C(a) + C(b) + C(c)", {"overdispersed": True, "additive": True}),
    "linear counts": (MoltenPoisson, "y ~ C(a) + C(b) + linear(u, v)", {}),
    "measurements": (MoltenNormal, "x ~ C(a) + C(b) + C(c)", {}),
    "linear measurements": (MoltenNormal, "x ~ C(a) + linear(u, v)", {}),
}


def table() -> pd.DataFrame:
    """Return 40 rows: counts with zeros and a missing level, an exposure, weights."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({name: rng.integers(0, n, 40) for name, n in (("a", 7), ("b", 3), ("c", 2))})
    frame["a"] = frame["a"].astype("Int64").mask(frame.index == 5)
    frame["y"], frame["x"] = rng.poisson(1.5, 40), rng.normal(size=40)
    frame["t"], frame["u"], frame["v"] = rng.uniform(0.5, 2.0, (3, 40))
    return frame


def main() -> None:
    """Print the differences of the cases named, and what was called on the device."""
    molten_cuda.PIECE = 4  # levels of several pieces
    used, found = watched(molten_cuda), {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(sys.argv[1:]):
            model, formula, options = CASES[name]
            path, merge = Path(folder) / f"{number}.zarr", not options.get("overdispersed")
            data = factorflow.write_table(path, table(), formula, block_rows=32, merge=merge)
            found[name] = fits(data, model(**FEW | options), holdout=0.1)
    print(json.dumps({"differences": found, "used": sorted(used)}))


if __name__ == "__main__":
    main()
