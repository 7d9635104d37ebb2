"""Cases of the options that are small enough for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from factorflow.models.configuration import Example
from factorflow.models.sparse_gfa.loadings import get_prior, prior_names


def small_examples(config: Callable[..., Any]) -> dict[str, Example]:
    """Return cases by name, given the class of the options."""
    small: dict[str, Any] = {"n_factors": 3, "warmup_iter": 4, "max_iter": 4}
    mixed = {"a": ("gaussian", 9), "b": ("bernoulli", 7), "c": ("poisson", 6)}
    wide = {"a": ("gaussian", 12), "b": ("gaussian", 8)}
    binary = {"a": ("gaussian", 9), "b": ("bernoulli", 8)}
    dense: dict[str, Any] = {"n_factors": 3, "r2": 0.8, "sparsity": 0.3, "view_activity": 1.0}
    priors = {
        name: Example(
            config(**small, loadings={"a": name, "b": "ard"}, **get_prior(name).options),
            data={"views": mixed, "n_factors": 3},
        )
        for name in prior_names()
        if name not in ("spike_slab", "ard")
    }
    return {
        "gaussian": Example(config(**small)),
        **priors,
        "likelihoods": Example(config(**small), data={"views": mixed, "n_factors": 3}),
        "bound": Example(
            config(**small, bound=True),
            data={"views": {"a": ("gaussian", 9), "b": ("bernoulli", 7)}, "n_factors": 3},
        ),
        "outliers": Example(
            config(**small, likelihoods={"a": "student_t(nu=5)", "c": "binomial(trials=400)"}),
            data={"views": {"a": ("gaussian", 9), "c": ("poisson", 6)}, "n_factors": 3},
        ),
        "outcomes": Example(
            config(**small, outcomes={"y": "guided", "death": "open"}),
            data={
                **dense,
                "views": {"a": ("gaussian", 12), "y": ("bernoulli", 1), "death": ("survival", 1)},
            },
        ),
        "groups": Example(
            config(**small, grouped_noise=True, scores="spike"),
            data={"views": wide, "n_factors": 3, "groups": 3},
        ),
        "covariates": Example(
            config(**small, covariates="group", scores="normal", size_factors={"c": "total+learned"}),
            data={"views": mixed, "n_factors": 3, "groups": 3},
        ),
        "smooth": Example(
            config(**small, smooth_covariates="time"),
            data={**dense, "views": binary, "smooth": 2, "groups": 2},
        ),
        "plane": Example(
            config(**small, smooth_covariates=[["x", "y"]], n_functions=5),
            data={**dense, "views": wide, "smooth": 2, "places": "plane"},
        ),
        "score_covariates": Example(
            config(**small, smooth_covariates="time", score_covariates="group", smooth_groups=False),
            data={**dense, "views": binary, "smooth": 2, "groups": 2},
        ),
        "starts": Example(
            config(**small, n_starts=3),
            data={"views": {"a": ("gaussian", 9), "b": ("bernoulli", 7)}, "n_factors": 3},
        ),
    }
