"""Sets of features that a model is given, by their numbers in each view: `FeatureSets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NAME_EVIDENCE = 3.0
"""Nats that a name has to be better than none by, besides the logarithm of the number of sets."""


@dataclass(frozen=True)
class FeatureSets:
    """Sets of features: pathways, gene sets.

    Parameters
    ----------
    members : mapping of str to tuple of tuple of int
        Numbers of the members in each view that has sets, one tuple for each set.
    digest : str
        Of names and members, as they were given.
    """

    names: tuple[str, ...]
    members: Mapping[str, tuple[tuple[int, ...], ...]]
    digest: str = ""

    def __len__(self) -> int:
        """Return how many sets there are."""
        return len(self.names)

    @property
    def evidence_needed(self) -> float:
        """Evidence of all views together, in nats, above which a name holds."""
        return NAME_EVIDENCE + float(np.log(len(self)))

    def inside(self, view: str, number: int, n_features: int) -> NDArray[np.bool_]:
        """Return which features of a view are in a set."""
        is_member = np.zeros(n_features, bool)
        is_member[list(self.members[view][number])] = True
        return is_member

    def sizes(self, view: str) -> NDArray[np.int64]:
        """Return how many features of a view are in each set."""
        return np.array([len(members) for members in self.members[view]], np.int64)

    def sums(self, view: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums of values (D, K) over the members of each set, (sets, K)."""
        sums = [values[list(members)].sum(axis=0) for members in self.members[view]]
        return np.stack(sums) if sums else np.zeros((0, values.shape[1]))
