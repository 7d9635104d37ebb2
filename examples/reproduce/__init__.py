"""Published experiments, run anew: one module each, used by ``python -m examples.reproduce``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import uuid4

__all__ = ["fit", "scratch_folder", "working_on"]

_where: ContextVar[tuple[Any, str] | None] = ContextVar("factorflow_reproduce", default=None)


@contextmanager
def working_on(cluster: Any, out: str | os.PathLike[str]) -> Iterator[None]:
    """Have the fits of an experiment work on a cluster, which they share; None: in this process.

    Parameters
    ----------
    cluster : ClusterSetting or None
        As ``cluster`` of `factorflow.settings.RunOptions`.
    out : path
        The folder of the experiment, on a disk that the workers see.
    """
    if cluster is None:
        yield
        return
    from factorflow.engine.executors.launch import shared_cluster
    from factorflow.settings import RunOptions

    os.makedirs(out, exist_ok=True)
    with (
        shared_cluster(RunOptions(cluster=cluster)) as shared,
        tempfile.TemporaryDirectory(prefix=".scratch-", dir=os.path.abspath(out)) as scratch,
    ):
        token = _where.set((shared.cluster, scratch))
        try:
            yield
        finally:
            _where.reset(token)


def fit(dataset: Any, model: Any, **options: Any) -> Any:
    """Fit where the experiment works; parameters as for `factorflow.fit`."""
    import factorflow

    if (where := _where.get()) is not None:
        cluster, scratch = where
        unseen = {"out": Path(scratch, f"{uuid4().hex}.zarr"), "progress": False}
        options = {**unseen, "executor": cluster, **options}
    return factorflow.fit(dataset, model, **options)


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder that the workers see, if there are any."""
    where = _where.get()
    return tempfile.TemporaryDirectory(dir=None if where is None else where[1])
