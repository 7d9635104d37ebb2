"""Without PyTorch the family is there, and says what to install; what was fitted can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
import numpy as np
import pytest
import factorflow as ff
config = ff.models.GPLVMCMF(n_factors=2, n_inducing=4)
assert config.examples() == {}
data = ff.write_dataset(sys.argv[1], {"a": np.random.default_rng(0).normal(size=(40, 5))})
try:
    ff.fit(data, config)
except ff.InputError as error:
    print(error)
"""


@pytest.mark.thorough
def test_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "d.zarr")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "pip install 'factorflow[gplvm]'" in found


@pytest.mark.thorough
def test_the_folder_imports_without_torch() -> None:
    code = "import sys, factorflow.models.gplvm_cmf; print('torch' in sys.modules, 'scipy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "False False\n"
    assert np.__version__
