from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def views(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Three views of 300 samples, one of each likelihood, with every kind of missing entry."""
    rna = rng.standard_normal((300, 12)).astype(np.float32)
    rna[4] = np.nan
    rna[7, 3] = np.nan
    mutation = (rng.random((300, 7)) < 0.4).astype(np.float32)
    mutation[10:20] = np.nan
    counts = rng.poisson(3.0, (300, 5)).astype(np.float32)
    return {"rna": rna, "mutation": mutation, "counts": counts}


@pytest.fixture
def data_folder() -> Path:
    """The folder with the real datasets; tests that need it are skipped without it."""
    if "FACTORFLOW_DATA" not in os.environ:
        pytest.skip("FACTORFLOW_DATA is not set")
    return Path(os.environ["FACTORFLOW_DATA"])
