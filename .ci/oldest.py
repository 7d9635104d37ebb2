"""Print the oldest version of each package that pyproject.toml admits, as constraints for pip.

python .ci/oldest.py > oldest.txt && pip install -c oldest.txt ".[test]"
"""

import re
import tomllib
from pathlib import Path

LEFT_OUT = {"factorflow", "torch", "dask-cuda", "cupy-cuda12x", "cupy-cuda13x", "numba-cuda"}
"""The package itself, and those that need CUDA or are of gigabytes."""

BOUND = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
lines = [
    *project["dependencies"],
    *(line for extra in project["optional-dependencies"].values() for line in extra),
]
oldest = dict(match.groups() for line in lines if (match := BOUND.match(line)))
for name, version in sorted(oldest.items()):
    if name not in LEFT_OUT:
        print(f"{name}=={version}")
