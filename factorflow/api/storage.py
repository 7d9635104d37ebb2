"""Methods of a posterior about its store: card, reading, checksums, copies."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from factorflow.api.prediction import PredictionMethods
from factorflow.errors import InputError
from factorflow.posterior import card, findings, store
from factorflow.posterior.open import load_tree
from factorflow.posterior.schema import is_posterior, read_with_checksums
from factorflow.storage.location import as_location
from factorflow.storage.publish import current_version, new_directory, new_file, write_file, write_zip

if TYPE_CHECKING:
    from factorflow.posterior.findings import Finding


class StorageMethods(PredictionMethods):
    """What is stored of a posterior, beside its arrays: findings and the card."""

    @cached_property
    def findings(self) -> list[Finding]:
        """Findings about the posterior, each with a remedy.

        Chains that have not mixed, a budget that ended the run, views predicted worse than by their means,
        overdispersed counts, factors that are one sample or one feature, or follow depth or a batch.

        Examples
        --------
        >>> posterior.findings
        []
        >>> stopped = factorflow.fit(dataset, model, max_iter=3)
        >>> stopped.findings[0].kind
        'budget'
        """
        return findings.findings(self)

    def card(self) -> str:
        """Return the model card: data, model, results and limits, in Markdown.

        `fit` and `save` write it beside the arrays of a stored posterior, as ``README.md``.

        Returns
        -------
        str

        Examples
        --------
        >>> posterior.card().splitlines()[0]
        '# Model card: sparse_gfa'
        """
        return card.model_card(self, self.findings)

    def load(self) -> Self:
        """Read everything into memory; the store is not needed afterwards.

        Returns
        -------
        Posterior
            This one.

        Examples
        --------
        >>> opened = factorflow.open_posterior("cohort-k3.zarr").load()
        >>> opened.path is None
        True
        """
        load_tree(self.tree, self.path)
        self.path = None
        return self

    def verify(self) -> None:
        """Read everything in the store and compare it with the checksums it was written with.

        Raises
        ------
        InputError
            Naming the first file that is missing or changed.

        Examples
        --------
        >>> posterior.verify()
        """
        if self.path is not None:
            read_with_checksums(self.path)[1].verify()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a path where nothing is yet; it appears there when it is complete.

        Parameters
        ----------
        path : path or URL
            Where nothing is yet. A name that ends in ``.zip`` is one file to share, which
            ``factorflow.load`` opens from there, or from an ``https://`` URL.

        Raises
        ------
        InputError
            When something is there, or it cannot be written.

        Examples
        --------
        >>> posterior.sample(50).save("cohort-k3-draws.zarr")
        >>> posterior.save("cohort-k3.zip")
        >>> factorflow.load("cohort-k3.zip").factors
        ['Factor1', 'Factor2', 'Factor3']
        """
        place = as_location(path)
        if current_version(place).exists():
            raise InputError("path", str(path), "a path where nothing is yet", "Choose another one.")
        if place.name.endswith(".zip"):
            with new_file(place) as file, TemporaryDirectory(dir=file.parent) as folder:
                self._write(Path(folder))
                write_zip(Path(folder), file)
            return
        with new_directory(place, overwrite=False, recognise=is_posterior) as folder:
            self._write(folder)

    def _write(self, folder: Path) -> None:
        store.save(self.tree, folder)
        write_file(folder / card.CARD, self.card())
