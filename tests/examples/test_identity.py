"""The experiment of identities and attributes, run anew on a small scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.reproduce.identity import reproduce
from factorflow.errors import InputError


@pytest.mark.thorough
def test_reproduce(tmp_path: Path) -> None:
    """The experiment runs, small, and its random start is told apart from the other ways."""
    small: dict[str, Any] = {"n_sequences": 5, "length": 40, "n_features": 8, "n_identities": 2}
    small |= {"seeds": 1, "max_iter": 3}
    found = reproduce(tmp_path, **small)["0"]
    ways = {"frame", "frame_then_chain", "random start", "mean subtracted"}
    assert set(found) == {"normal_log_density", "random pairs", "true states", *ways}
    assert list(found["frame_then_chain"]["free_energy"])[-1] == "chains"
    with pytest.raises(InputError, match="simulated"):
        reproduce(tmp_path, tmp_path)
    with pytest.raises(InputError, match="paired across"):
        reproduce(tmp_path, n_identities=1)
