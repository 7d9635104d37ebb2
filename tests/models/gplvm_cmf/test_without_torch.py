"""Without PyTorch the family is there, and says what to install; what was fitted can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorflow.models.gplvm_cmf import results

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


def test_views_are_generated_with_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several views, and of each its standard deviation about the mean of its decoder."""
    sds = {"a": 0.5, "b": 2.0}
    views = [SimpleNamespace(name=name, likelihood="gaussian", n_features=3) for name in sds]
    settings: Any = SimpleNamespace(n_factors=2, views=views)

    def observe(settings: Any, record: Any, view: Any, z: Any) -> tuple[Any, Any]:
        return np.full((len(z), 3), 10.0), np.full((len(z), 3), sds[view.name] ** 2)

    monkeypatch.setattr(results, "_observe", observe)
    found = results.generate(settings, {}, 4000, seed=1)
    noise = {name: (found[name] - 10.0) / sd for name, sd in sds.items()}
    assert found["scores"].shape == (4000, 2)
    for name in sds:
        np.testing.assert_allclose(noise[name].std(axis=0), 1.0, rtol=0.06)  # 5 of its errors
    for left, right in (("a", "b"), ("a", "scores"), ("b", "scores")):
        one, two = (noise.get(name, found.get(name)) for name in (left, right))
        assert np.abs(np.corrcoef(one.T, two.T)[:3, 3:]).max() < 0.08, (left, right)
