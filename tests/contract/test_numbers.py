"""Every family finds the numbers that it found before: the only test that a deliberate change has to change.

Other tests say that the numbers are right, or near enough to the truth; this one that none of them moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from contract_tools import arrays
from known_numbers import check_numbers

import factorflow
from factorflow.models.registry import registered_models
from factorflow.posterior.globals import GROUP

KNOWN = Path(__file__).with_name("known_numbers.json")

GAUSSIAN = {"views": {"a": ("gaussian", 9), "b": ("gaussian", 6)}, "n_factors": 2}
MIXED = {"views": {"a": ("gaussian", 6), "b": ("bernoulli", 6), "c": ("poisson", 5)}, "n_factors": 2}
GROUPED = GAUSSIAN | {"groups": 2}
BITS = {"n_features": 10, "n_factors": 2, "missing": 0.1}
SITES = {"variables": {"site": 5, "species": 4}, "n_components": 2}
TWO = {"views": {"a": ("gaussian", 5), "b": ("bernoulli", 4)}}
PLACED = TWO | {"inputs": "place"}
COVERED = SITES | {"linear": {"cover": 3}, "missing_codes": {"site": 0.2}}
FRAMES = {"n_features": 5, "n_identities": 2, "n_attributes": 2, "n_sequences": 3}

SPARSE: dict[str, Any] = {"model": "sparse_gfa", "n_factors": 3, "warmup_iter": 3, "max_iter": 5}
PROBIT: dict[str, Any] = {"model": "probit", "n_factors": 2, "n_burn_in": 3, "n_draws": 6, "chains": 2}
POISSON: dict[str, Any] = {"model": "molten_poisson", "n_components": 2, "max_iter": 4, "n_starts": 1}
NORMAL: dict[str, Any] = {"model": "molten_normal", "n_components": 2, "max_iter": 4, "n_starts": 1}
DECODERS: dict[str, Any] = {
    "model": "gplvm_cmf",
    "n_factors": 2,
    "n_inducing": 4,
    "hidden": 3,
    "warmup_iter": 3,
    "max_iter": 4,
    "evaluate_every": 2,
    "compare_rows": 40,
    "compare_steps": 2,
}
IDENTITY: dict[str, Any] = {
    "model": "identity_attribute",
    "n_identities": 2,
    "n_attributes": 2,
    "max_iter": 4,
}

OPTIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bound": ("sparse_gfa", MIXED, SPARSE | {"bound": True, "likelihoods": "negative_binomial"}),
    "horseshoe": ("sparse_gfa", GAUSSIAN | {"missing": 0.1}, SPARSE | {"loadings": "horseshoe"}),
    "no spike": ("sparse_gfa", GAUSSIAN, SPARSE | {"loadings": "ard", "noise": "both"}),
    "random start": ("sparse_gfa", GAUSSIAN, SPARSE | {"start": "random", "noise": "sample"}),
    "factorised": ("sparse_gfa", GAUSSIAN | {"missing": 0.1}, SPARSE | {"scores_posterior": "factorised"}),
    "spike of scores": ("sparse_gfa", GROUPED, SPARSE | {"grouped_noise": True, "scores": "spike"}),
    "ard of scores": ("sparse_gfa", GROUPED, SPARSE | {"scores": "ard", "scale_views": False}),
    "absent samples": ("sparse_gfa", GAUSSIAN | {"missing_samples": 0.2}, SPARSE | {"intercepts": False}),
    "slabs": ("binary", BITS, PROBIT | {"factors": "spike_slab", "average_scores": True}),
    "travels": ("binary", BITS, PROBIT | {"sampler": "hmc", "predictive": "all"}),
    "bits": ("binary", BITS, PROBIT | {"factors": "binary", "sampler": "gibbs", "priors": "improper"}),
    "random components": ("table", SITES, POISSON | {"start": "random", "missing": "one"}),
    "sums beside products": (
        "table",
        COVERED,
        POISSON | {"linear": ["cover"], "additive": True, "table_bits": 32},
    ),
    "covered measurements": ("table", COVERED | {"response": "gaussian"}, NORMAL | {"linear": ["cover"]}),
    "measurements": ("table", SITES | {"response": "gaussian"}, NORMAL | {"start": "random"}),
    "given inputs": ("gplvm", PLACED, DECODERS | {"given": ["place"], "q_u": "prior"}),
    "diagonal inputs": ("gplvm", TWO, DECODERS | {"q_x": "diagonal", "n_inputs": 3, "part_rows": 32}),
    "mean field": ("gplvm", TWO, DECODERS | {"coupling": "mean_field", "draws": 2}),
    "relevance": ("identity_attribute", FRAMES, IDENTITY | {"factorisation": "chain", "relevance_after": 1}),
}
"""Options that no case of a family has: simulator, its settings, and the model."""


PUBLIC = (
    r"(optimization|iterations)/objective|(variational|averages)/(scores|present|attributes|weight)",
    r"(variational|posterior)/(loadings|decoder_mean)_(?!variance)\w+",
    r"predict/\w+/(mean|sd)|predict/\w+/lower|holdout/log_likelihood",
    r"(variational|posterior)/(noise_precision|noise_variance|precision_variance|comparison_error)\w*",
    r"projected//\w+/scores|ahead/mean\w*|scored/log_likelihood|generated/scores|variational/attributes_variance",
    r"(variational|posterior)/(intercept|loading_variance|scores_variance|missing|inducing_values)\w*|shares",
)
"""What users read first, in turn; each case has the first ten arrays of these."""


def public(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return ten of the arrays: the first two or so of each kind, then more."""
    kinds = [[name for name in sorted(found) if re.fullmatch(kind, name)] for kind in PUBLIC]
    names = [name for kind in kinds for name in kind[:2]] + [name for kind in kinds for name in kind[2:]]
    return {name: found[name] for name in names[:10]}


def runnable() -> list[str]:
    """Return the families whose libraries are installed."""
    return [name for name, kind in registered_models().items() if kind.examples()]


def stored_numbers(posterior: Any) -> dict[str, Any]:
    """Return the arrays of a posterior that users see."""
    found = {name.strip("/"): values for name, values in arrays(posterior).items()}
    return {name: values for name, values in found.items() if not name.startswith(f"{GROUP}/")}


def test_numbers_are_the_known_ones(
    family: str, datasets: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    """Of the posterior, and of what is asked of it: predictions, shares, projections."""
    name = family.partition(":")[0]
    if not registered_models()[name].__module__.startswith("factorflow."):
        pytest.skip("lives in the tests")
    reference = request.getfixturevalue("reference")
    found = stored_numbers(reference)
    for view in reference.meta.value_views:
        predicted = reference.predict(view.name, 20, 70, interval=0.8)
        found |= {f"predict/{view.name}/{name}": values.values for name, values in predicted.items()}
    if reference.kind == "variational" and reference.factors and reference.loaded_views:
        found["shares"] = reference.variance_explained().values
        found["total shares"] = reference.variance_explained_total().values
    if name == "identity_attribute":
        ahead = reference.one_step(20, 70)
        found |= {f"ahead/{variable}": values.values for variable, values in ahead.items()}
    if name == "gplvm_cmf":
        found |= {f"generated/{v}": values.values for v, values in reference.generate(9, seed=2).items()}
        scored = reference.log_likelihood(datasets(family, n_samples=33), n_draws=12, n_repeats=2)
        found |= {f"scored/{variable}": values.values for variable, values in scored.items()}
    projected = reference.project(datasets(family, n_samples=33), iterations=2)
    found |= {f"projected/{name}": v for name, v in arrays(projected).items() if "scores" in name}
    check_numbers(KNOWN, family, public(found))


@pytest.mark.parametrize("case", OPTIONS)
def test_options_find_the_known_numbers(case: str, tmp_path: Path) -> None:
    """Of posteriors, and of predictions from them."""
    simulator, settings, model = OPTIONS[case]
    if model["model"] not in runnable():
        pytest.skip(f"{model['model']} needs a library that is not installed")
    dataset = factorflow.simulate(simulator, tmp_path / "data.zarr", 70, seed=5, block_rows=32, **settings)
    posterior = factorflow.fit(dataset, model, seed=2, holdout=0.1, progress=False)
    found = stored_numbers(posterior)
    for view in posterior.meta.value_views:
        predicted = posterior.predict(view.name, 20, 50)
        found |= {f"predict/{view.name}/{name}": values.values for name, values in predicted.items()}
    check_numbers(KNOWN, f"option {case}", public(found))
