"""The one table of noise sites: who draws where in the 16 bits that a counter keeps for it.

Two uses at different sites never share a random number. A family numbers its own uses within `MODELS` (two
families may use the same numbers: they never draw in one run). The noise of new samples under fixed globals
differs from that of the fit's own rows in the counter's chain (`Step.stream`), not in its site.

| sites | of whom |
|---|---|
| 0 - 63 | `MODELS`: named constants of a family |
| 64 - 95 | `ENGINE`: parts of the data |
| 900 - 1023 | `SIMULATORS`: purposes of a simulator, then two for each of its views |
| 1024 - 16383 | `HOLDOUT_ENTRIES`: held-out entries, one for each view of a dataset |
| 16384 - 16399 | `HOLDOUT_UNITS`: held-out rows and sequences; entries of split counts that are scored |
| 16400 - 16415 | `PATCHES`: windows over photographs and films |
| 20480 - 28671 | `DRAWS`: draws from a variational distribution, two a variable; new scores of draws |
"""

from __future__ import annotations

from dataclasses import dataclass

from factorflow.errors import InputError


@dataclass(frozen=True)
class Sites:
    """A range of noise sites.

    Parameters
    ----------
    first : int
        The lowest of them.
    """

    first: int
    size: int
    of: str

    def __contains__(self, site: int) -> bool:
        return self.first <= site < self.first + self.size

    def __getitem__(self, number: int) -> int:
        """Return a site by its number within the range.

        Raises
        ------
        InputError
            When the range has no such number: there are too many views, variables, ...
        """
        if not 0 <= number < self.size:
            raise InputError(
                f"noise sites of {self.of}",
                number + 1,
                f"at most {self.size}",
                "Use fewer: random numbers of different uses would no longer be independent.",
            )
        return self.first + number


MODELS = Sites(0, 64, "a family of models")
ENGINE = Sites(64, 32, "the engine")
SIMULATORS = Sites(900, 124, "a simulator and its views")
HOLDOUT_ENTRIES = Sites(1024, 15360, "held-out entries (views of a dataset)")
HOLDOUT_UNITS = Sites(16384, 16, "held-out rows and sequences")
PATCHES = Sites(16400, 16, "windows over photographs and films")
DRAWS = Sites(20480, 8192, "draws from a variational distribution (two a variable)")

TABLE = (MODELS, ENGINE, SIMULATORS, HOLDOUT_ENTRIES, HOLDOUT_UNITS, PATCHES, DRAWS)
"""All ranges, lowest first; what lies between them is free."""
