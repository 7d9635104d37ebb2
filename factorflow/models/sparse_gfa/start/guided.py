"""Guided factors: each is what predicts an outcome when the sparse stage begins, the others lie across.

In the warm-up an outcome loads on all factors, x = b + w'z. Of white scores w / |w| is the axis of a factor
that predicts the outcome as well as all of them together do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import varimax
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals


def guided_views(settings: Settings) -> list[str]:
    """Return the names of the views that guide a factor each."""
    return [view.name for view in settings.views if view.prior.guides]


def rotation_with_guides(
    loadings: Mapping[str, Float64[Array, "_ K"]], guides: list[str]
) -> Float64[Array, "K K"]:
    """Return a rotation: an axis of each guiding view, in order, and simple structure across them.

    Parameters
    ----------
    loadings : mapping of view to array
        Scaled loadings of white scores.
    guides : list of str
        Views that guide a factor; no more than there are factors.
    """
    across = np.eye(next(iter(loadings.values())).shape[1])
    axes = []
    for name in guides:
        left = loadings[name] @ across
        axis = np.linalg.svd(left)[2][0]
        axis = axis if (left @ axis).sum() >= 0.0 else -axis  # a larger score: more of the outcome
        axes.append(across @ axis)
        across = across @ complement(axis)
    # Of guiding views nothing lies across but rounding errors, which varimax would take for loadings.
    others = [one @ across for name, one in loadings.items() if name not in guides]
    rest = across @ varimax(np.concatenate(others)) if others and across.shape[1] else across
    return np.concatenate([*(axis[:, None] for axis in axes), rest], axis=1)


def complement(axis: Float64[Array, " K"]) -> Float64[Array, "K less"]:
    """Return an orthonormal basis across an axis of length 1, by the reflection of that on a coordinate.

    Bases of a decomposition may turn with the version of a library, and the order of factors with them.
    """
    k = int(np.abs(axis).argmax())
    normal = axis.copy()
    normal[k] += np.copysign(1.0, axis[k])
    reflection = np.eye(axis.size) - 2.0 * np.outer(normal, normal) / (normal @ normal)
    return np.delete(reflection, k, axis=1)


def with_guided_classes(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals in which the first factors are those that are guided, one by each view that does."""
    weights = dict(globals_.weights)
    for k, name in enumerate(guided_views(settings)):
        classes = np.zeros(weights[name].mean.shape, np.int8)
        classes[:, k : k + 1] = 1
        weights[name] = replace(weights[name], classes=classes)
    return replace(globals_, weights=weights)


def is_guided(settings: Settings, globals_: Globals) -> Bool[Array, " K"]:
    """Return which factors a view guides: they stay, whatever they are worth."""
    classes = (globals_.weights[name].classes for name in guided_views(settings))
    of_views = [one.any(axis=0) for one in classes if one is not None]
    return np.any([np.zeros(globals_.n_factors, bool), *of_views], axis=0)


def guided_labels(settings: Settings, globals_: Globals, labels: list[str]) -> list[str]:
    """Return the labels of the factors, of guided ones the views that they are guided by."""
    labels = list(labels)
    for name in guided_views(settings):
        classes = globals_.weights[name].classes
        for k in () if classes is None else np.flatnonzero(classes.any(axis=0)):
            labels[k] = name
    return labels
