"""What the pixels of a patch become, and the way back: mean removal, principal components, whitening."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float64
from threadpoolctl import threadpool_limits

from factorflow.core.block import Array
from factorflow.data.store.moments import Survey
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.data import Dataset

__all__ = ["PatchTransform", "learn"]

PIECE = 4096
"""Patches in one matrix product, always: its bits depend on their number."""

LEAST = 1e-10
"""Variances below this share of the largest are rounding errors of float32."""

Read = Callable[[int, int], Any]


@dataclass(frozen=True, eq=False)
class PatchTransform:
    """What the pixels of a patch become, and the way back.

    With pixels p (less their own mean, where `own_mean` says so), ``y = S^-1 V (p - m)``: V are principal
    components, S their standard deviations, or one without whitening. Back: ``p = m + V^T S y``.

    Parameters
    ----------
    view : str
        The view of the dataset whose features are y.
    size : (int, int)
        Height and width of a patch (h, w).
    mean : (P,) array
        m; P = h w pixels, row by row.
    components : (K, P) array
        V: orthonormal rows, largest variance first; or the pixels themselves.
    deviation : (K,) array
        Standard deviations of the components.
    whitened : bool
        Whether S are these; else it is one.
    own_mean : bool
        Whether the mean of its pixels is taken from each patch: patches alike but for their brightness are
        one.
    share : float
        Share of the variance of the pixels that the components hold.
    """

    view: str
    size: tuple[int, int]
    mean: Float64[Array, " P"]
    components: Float64[Array, "K P"]
    deviation: Float64[Array, " K"]
    whitened: bool
    own_mean: bool
    share: float

    @property
    def scale(self) -> Float64[Array, " K"]:
        """Diagonal of S, (K,)."""
        return self.deviation if self.whitened else np.ones_like(self.deviation)

    @property
    def features(self) -> list[str]:
        """Names of the features y, (K,)."""
        if self.is_pixels:
            h, w = self.size
            return [f"pixel_{i}_{j}" for i in range(h) for j in range(w)]
        return [f"component{k + 1}" for k in range(len(self.components))]

    @property
    def is_pixels(self) -> bool:
        """Whether features are the pixels themselves."""
        return self.components.shape[0] == self.mean.size and bool(
            np.array_equal(self.components, np.eye(self.mean.size))
        )

    def forward(self, patches: Float[Array, "N ..."]) -> Float64[Array, "N K"]:
        """Return what patches become.

        Parameters
        ----------
        patches : (N, h, w) or (N, P) array
            Grey values on the scale of those that the transform was learnt from.

        Raises
        ------
        InputError
            When they have another size.
        """
        values = np.asarray(patches, dtype=np.float64)
        if values.shape[1:] not in (self.size, self.mean.shape):
            h, w = self.size
            raise InputError(
                "patches", values.shape, f"(N, {h}, {w}) or (N, {h * w})", "Cut patches of that size."
            )
        values = values.reshape(len(values), -1)
        out = np.empty((len(values), len(self.scale)))
        with threadpool_limits(limits=1):
            for start in range(0, len(values), PIECE):
                out[start : start + PIECE] = self._piece(values[start : start + PIECE])
        return out

    def _piece(self, values: Any) -> Any:
        """Return what at most `PIECE` patches become; they are filled up to that number."""
        whole = np.zeros((PIECE, self.mean.size))
        whole[: len(values)] = centred(values, self.own_mean) - self.mean
        return ((whole @ self.components.T) / self.scale)[: len(values)]

    def inverse(self, features: Float[Array, "N K"]) -> Float64[Array, "N h w"]:
        """Return the patches that features (N, K) stand for, without the mean of their own.

        Raises
        ------
        InputError
            When there is another number of features.
        """
        return self.fields(np.asarray(features, np.float64).T) + self.mean.reshape(self.size)

    def fields(self, directions: Float[Array, "K ..."], white: bool = False) -> Float64[Array, "... h w"]:
        """Return directions among the features, such as loadings, as what they add to a patch.

        Parameters
        ----------
        directions : (K, ...) array
            Features first.
        white : bool
            To a patch of white pictures instead, in which all components have variance one: ``V^T`` of white
            features. In pictures as they are slow waves have most of the power, and hide all others.

        Returns
        -------
        (..., h, w) array

        Raises
        ------
        InputError
            When there is another number of features.
        """
        w = np.asarray(directions, np.float64)
        if w.ndim == 0 or w.shape[0] != len(self.scale):
            raise InputError(
                "features",
                w.shape,
                f"{len(self.scale)} features along the first axis",
                f"Take those of the view {self.view!r}, in the order of the dataset.",
            )
        scale = self.scale
        if white:
            scale = scale / np.where(self.deviation > 0, self.deviation, 1.0)
        scaled = w.reshape(len(w), -1) * scale[:, None]
        return (scaled.T @ self.components).reshape(*w.shape[1:], *self.size)

    def describe(self) -> dict[str, Any]:
        """Return its size and kind as plain values (JSON)."""
        return {
            "view": self.view,
            "size": list(self.size),
            "n_components": 0 if self.is_pixels else len(self.scale),
            "share": self.share,
            "whitened": self.whitened,
            "own_mean": self.own_mean,
        }

    # As it lies in a dataset

    def attributes(self) -> dict[str, Any]:
        """Return what the dataset keeps of it (`Dataset.attributes`)."""
        return vars(self) | {"size": list(self.size)}

    @classmethod
    def of(cls, dataset: Dataset) -> PatchTransform:
        """Return the transform of a dataset that `write_patches` made.

        Raises
        ------
        InputError
            For another dataset.
        """
        found = dataset.attributes
        if "transform" in dataset.checksums.contents:  # of datasets from before they had attributes
            tree = dataset.tree["transform"]
            found = dict(tree.attrs) | {name: array.values for name, array in tree.data_vars.items()}
        names = cls.__dataclass_fields__
        if not names.keys() <= found.keys():
            remedy = "Name one that write_patches made."
            raise InputError("dataset", str(dataset.path), "a dataset of patches", remedy)
        height, width = found["size"]
        return cls(**{**{name: found[name] for name in names}, "size": (int(height), int(width))})


def centred(patches: Any, own_mean: bool) -> Any:
    """Return patches (N, P) as float64, less the mean of their own pixels if that is wanted."""
    values = np.asarray(patches, dtype=np.float64)
    return values - values.mean(axis=1, keepdims=True) if own_mean else values


def learn(
    view: str,
    size: tuple[int, int],
    read: Read,
    n_rows: int,
    n_components: float | None,
    *,
    whiten: bool,
    own_mean: bool,
) -> PatchTransform:
    """Find the transform of patches in two passes over pieces of a fixed size: means, then covariances.

    Parameters
    ----------
    view, size, own_mean
        As for `PatchTransform`.
    read : callable
        (start, stop) -> patches, (stop - start, P).
    n_rows : int
        Patches (N).
    n_components : int, float or None
        Principal components: their number, or the least share of the variance that they hold (below 1); None:
        the pixels themselves.
    whiten : bool
        Divide by standard deviations.

    Raises
    ------
    InputError
        When patches do not vary, or have fewer components than wanted.
    """
    n_pixels = size[0] * size[1]
    _check_components(n_components, n_pixels)
    pieces = [(start, min(start + PIECE, n_rows)) for start in range(0, n_rows, PIECE)]
    survey = Survey(n_pixels)
    for start, stop in pieces:
        survey.update(centred(read(start, stop), own_mean))
    mean, variance = survey.mean, survey.variance
    if not variance.max() > LEAST * (mean @ mean / n_pixels):
        raise InputError("source", "patches that are all the same", "pictures that vary", "Take others.")
    if n_components is None:
        return _pixels(view, size, mean, variance, whiten=whiten, own_mean=own_mean)
    with threadpool_limits(limits=1):
        products = np.zeros((n_pixels, n_pixels))
        for start, stop in pieces:
            values = centred(read(start, stop), own_mean) - mean
            products += values.T @ values
        variances, vectors = np.linalg.eigh(products / n_rows)
    variances, vectors = variances[::-1], vectors[:, ::-1].T
    n, share = _chosen(n_components, variances)
    kept = vectors[:n]
    largest = np.take_along_axis(kept, np.abs(kept).argmax(axis=1)[:, None], axis=1)
    deviation = np.sqrt(variances[:n])
    return PatchTransform(view, size, mean, kept * np.sign(largest), deviation, whiten, own_mean, share)


def _pixels(
    view: str, size: tuple[int, int], mean: Any, variance: Any, *, whiten: bool, own_mean: bool
) -> PatchTransform:
    if whiten and not variance.min() > LEAST * variance.max():
        raise InputError("whiten", True, "pixels that all vary", "Give whiten=False, or n_components.")
    deviation = np.sqrt(variance)
    return PatchTransform(view, size, mean, np.eye(mean.size), deviation, whiten, own_mean, 1.0)


def _check_components(n_components: Any, n_pixels: int) -> None:
    whole = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)
    share = isinstance(n_components, float | np.floating) and 0.0 < n_components < 1.0
    if n_components is None or share or (whole and 1 <= n_components <= n_pixels):
        return
    raise InputError(
        "n_components",
        n_components,
        f"a whole number from 1 to {n_pixels} (pixels), or a share of the variance between 0 and 1",
        "Leave it out for 0.95; None keeps the pixels themselves.",
    )


def _chosen(n_components: float, variances: Any) -> tuple[int, float]:
    """Return how many components are kept, and the share of the variance that they hold."""
    able = int((variances > LEAST * variances[0]).sum())
    shares = np.cumsum(variances[:able]) / variances[:able].sum()
    if n_components < 1:
        n = min(able, int(np.searchsorted(shares, n_components)) + 1)
    elif n_components > able:
        raise InputError(
            "n_components",
            n_components,
            f"at most {able}: the patches vary in no more directions",
            "Take fewer, or more and other patches.",
        )
    else:
        n = int(n_components)
    return n, float(shares[n - 1])
