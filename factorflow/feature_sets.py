"""Sets of features that a model is given, by their numbers in each view: `FeatureSets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FeatureSets"]


@dataclass(frozen=True)
class FeatureSets:
    """Sets of features: pathways, gene sets.

    Parameters
    ----------
    names : tuple of str
        Of the sets.
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

    def inside(self, view: str, number: int, n_features: int) -> NDArray[np.bool_]:
        """Return which features of a view are in a set."""
        found = np.zeros(n_features, bool)
        found[list(self.members[view][number])] = True
        return found

    def sizes(self, view: str) -> NDArray[np.int64]:
        """Return how many features of a view are in each set."""
        return np.array([len(members) for members in self.members[view]], np.int64)

    def sums(self, view: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums of values (D, K) over the members of each set, (sets, K)."""
        found = [values[list(members)].sum(axis=0) for members in self.members[view]]
        return np.stack(found) if found else np.zeros((0, values.shape[1]))

    def as_record(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> FeatureSets:
        """Return the sets that `as_record`, and JSON, made a record of.

        Parameters
        ----------
        record : mapping of str to Any
            A value for each field.

        Returns
        -------
        FeatureSets
        """
        members = {view: tuple(map(tuple, sets)) for view, sets in record["members"].items()}
        return cls(tuple(record["names"]), members, record["digest"])
