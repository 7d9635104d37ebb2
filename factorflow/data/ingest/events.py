"""Times to an event: a view of columns ``time`` and ``event`` as one feature of times, some censored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.rows import RowNames
from factorflow.data.store.view_source import ViewSource
from factorflow.errors import InputError
from factorflow.likelihoods.survival import Survival, baseline_hazard, event_intervals

TIME, EVENT = "time", "event"
UNNAMED = {"feature0", "feature1"}


@dataclass
class Events:
    """Times of which some are those of an event; others, at which a sample was seen last, have a 1 beside.

    Parameters
    ----------
    events : callable
        (start, stop) -> 1 of rows whose event was seen, else 0, (stop - start,).
    """

    events: Callable[[int, int], NDArray[Any]]
    aux = "censored"
    likelihood = Survival.name
    what = "times to an event"
    seen: list[tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=list)

    def __call__(
        self, values: NDArray[Any], start: int, names: RowNames, features: Any, view: str
    ) -> tuple[NDArray[Any], NDArray[np.int8]]:
        """Return rows as they are stored, and which are censored."""
        time, event = values[:, 0], np.asarray(self.events(start, start + len(values)), float)
        observed = ~np.isnan(time)
        wrong = observed & ((time < 0) | ~np.isfinite(time))
        unclear = observed & (event != 0) & (event != 1)
        if (wrong | unclear).any():
            row = int((wrong | unclear).argmax())
            what, actual, expected = (
                (TIME, float(time[row]), "a time of 0 or more")
                if wrong[row]
                else (EVENT, float(event[row]), "1 where the event was seen, 0 where it was not until then")
            )
            where = f"{what} of sample {str(names.part(start + row, start + row + 1)[0])!r}, view {view!r}"
            raise InputError(where, actual, expected, "Correct it; leave both empty where nothing is known.")
        self.seen.append((time[observed].astype(float), event[observed]))
        return values, (observed & (event == 0)).astype(np.int8)[:, None]

    def check(self, view: str, features: Any) -> None:
        """Refuse nothing: every entry was checked."""

    def complete(self, likelihood: str) -> str:
        """Return the likelihood with intervals and hazards of all rows; without an event as it is."""
        times, events = (np.concatenate(parts) for parts in zip(*self.seen, strict=True))
        if likelihood != Survival.name or not events.any() or not times.any():
            return likelihood
        edges = event_intervals(times, events)
        numbers = edges, baseline_hazard(edges, times, events)
        return str(Survival(*(":".join(f"{number:.9g}" for number in part) for part in numbers)))


def as_times(view: ViewSource) -> ViewSource:
    """Return a view of columns ``time`` and ``event``, in this order where they have no names, as times."""
    names = view.features.tolist()
    if set(names) == UNNAMED:
        names = [TIME, EVENT]
    if sorted(names) != sorted((TIME, EVENT)):
        actual = f"a view of {', '.join(names[:5])}"
        expected = "columns time and event: 1 where the event was seen, 0 where the sample was seen last"
        raise InputError(
            f"likelihood {Survival.name} of view {view.name!r}", actual, expected, "Rename them."
        )
    read, columns = view.read, {name: names.index(name) for name in names}

    def column(name: str) -> Callable[[int, int], NDArray[Any]]:
        return lambda start, stop: np.asarray(read(start, stop))[:, columns[name]]

    time, about = column(TIME), view.about
    return replace(
        view,
        features=np.array([TIME]),
        read=lambda start, stop: time(start, stop)[:, None],
        split=Events(column(EVENT)),
        about=None if about is None else about.iloc[[columns[TIME]]],
    )
