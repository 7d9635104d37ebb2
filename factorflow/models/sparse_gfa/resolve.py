"""Options of sparse group factor analysis joined with the shape of a dataset: `Settings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factorflow.core.factor_labels import is_number_label
from factorflow.core.places import MOST_CELLS
from factorflow.errors import InputError
from factorflow.likelihoods import Likelihood, get_likelihood, likelihood_names
from factorflow.models.contract import Meta, ViewMeta
from factorflow.models.sparse_gfa.loadings import get_prior
from factorflow.models.sparse_gfa.refusals import PHRASES
from factorflow.models.sparse_gfa.settings import Priors, Settings, ViewSettings
from factorflow.models.sparse_gfa.size_factors import LEARNED, METHODS
from factorflow.models.sparse_gfa.smooth.basis import Basis
from factorflow.models.sparse_gfa.smooth.composite import Linear, Sum
from factorflow.models.sparse_gfa.smooth.cosines import Cosines, choose_basis
from factorflow.models.sparse_gfa.smooth.points import Points
from factorflow.models.sparse_gfa.smooth.processes import LEVELS
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings

Options = Any
"""A `SparseGFA`, whose module imports this one."""

FEW_ENTRIES = 1_000_000
"""Below this, double precision costs next to nothing, and rounding shows in the bound soonest."""


def loadings_of(options: Options, view: str, outcome: str = "") -> str:
    """Return the name of the prior of the loadings of a view, with its parameters.

    Parameters
    ----------
    options : SparseGFA
        The options.
    view : str
        Name of the view.
    outcome : {"", "open", "guided"}
        What it is where `SparseGFA.outcomes` does not say.
    """
    outcome = (options.outcomes or {}).get(view, outcome)
    if isinstance(options.loadings, Mapping) and view in options.loadings:
        name = options.loadings[view]
    elif outcome:
        name = {"open": "ard", "guided": "guided"}[outcome]
    else:
        name = options.loadings if isinstance(options.loadings, str) else "spike_slab"
    return f"{name}(slab={options.slab})" if name == "nonnegative" else name


def settings_of(options: Options, meta: Meta) -> Settings:
    """Return the settings of a run.

    Parameters
    ----------
    options : SparseGFA
        The options.
    meta : Meta
        Shape of the dataset.

    Raises
    ------
    InputError
        For options that do not go with the dataset, or with each other.
    """
    prior = options.scores
    if prior == "auto":
        prior = "smooth" if meta.score_inputs else "ard" if meta.groups else "normal"
    smooth = _smooth(options, meta, prior)
    prior = "normal" if prior == "smooth" else prior
    likelihoods = likelihoods_of(options, meta)
    _check_views("loadings", options.loadings, meta)
    _check_views("size_factors", options.size_factors, meta)
    _check_outcomes(options, meta)
    beside = any(view.n_features > 1 for view in meta.value_views)
    outcome = "open" if options.outcomes is None and beside else ""
    alpha_priors = {get_likelihood(likelihood).shared_alpha_prior for _, likelihood in likelihoods}
    shared_alpha_prior = alpha_priors.pop() if len(alpha_priors) == 1 else None
    columns = [column.name for column in meta.sizes]
    grouped = bool(meta.groups) and (prior != "normal" or options.grouped_noise)
    return Settings(
        views=tuple(
            _view(
                options,
                view,
                likelihood,
                shared_alpha_prior,
                outcome if view.n_features == 1 else "",
                columns,
            )
            for view, likelihood in likelihoods
        ),
        n_rows=meta.n_rows,
        n_factors=options.n_factors,
        groups=meta.groups if grouped else (),
        grouped_noise=options.grouped_noise and bool(meta.groups),
        feature_noise=options.noise != "sample",
        sample_noise=options.noise != "feature",
        intercepts=bool(options.intercepts),
        center=options.center or prior == "nonnegative",  # the start is about the mean; b = 0 comes behind it
        scale_views=options.scale_views,
        scale_features=options.scale_features,
        scores_prior=prior,
        full_scores=options.scores_posterior == "full" and prior not in ("spike", "nonnegative"),
        start=options.start,
        n_starts=options.n_starts,
        drop=options.drop,
        tol=options.tol,
        learns_n_factors=options.drop > 0.0,
        precision_bits=_bits(options, meta),
        priors=Priors(),
        score_slab=options.slab,
        covariates=meta.covariates,
        sets=meta.feature_sets,
        smooth=smooth,
    )


def _smooth(options: Options, meta: Meta, prior: str) -> SmoothSettings | None:
    """Return the settings of smooth scores; None where there are none.

    Raises
    ------
    InputError
        For options that smooth scores do not go with.
    """
    if prior != "smooth":
        if not meta.score_inputs:
            return None
        expected = f"'smooth' or 'auto' where there are {PHRASES['scores']}"
        raise InputError("scores", options.scores, expected, "Leave one of the two out.")
    if not meta.score_inputs:
        text = "columns of the sample metadata that smooth scores are functions of"
        raise InputError("smooth_covariates", None, text, "For example {smooth_covariates}.",
                         smooth_covariates=["time"])  # fmt: skip
    parts = list[Basis]()
    if meta.places is not None:
        parts.append(choose_basis(meta.places, options.kernel, options.n_functions))
    if meta.levels is not None:
        parts.append(Points(meta.levels, LEVELS))
    if meta.score_covariates is not None:
        parts.append(Linear(meta.score_covariates))
    if options.kernel == "matern12" and isinstance(parts[0], Cosines):
        expected = f"a smoother one, where there are more than {MOST_CELLS} places"
        raise InputError("kernel", options.kernel, expected, "Use {kernel}.", kernel="matern32")
    gaussian = all(likelihood == "gaussian" for _, likelihood in likelihoods_of(options, meta))
    whole = gaussian and all(view.missing == "none" for view in meta.views)
    places_known = all(one.n_known == meta.n_rows for one in (meta.places, meta.levels) if one is not None)
    basis = parts[0] if len(parts) == 1 else Sum(tuple(parts))
    return SmoothSettings(basis, whole and places_known, _reference(options, basis))


def _reference(options: Options, basis: Basis) -> int | None:
    """Return the number of the group whose clock the others are put on; None where clocks are the same.

    Raises
    ------
    InputError
        When there are no groups with courses of their own, several columns, or no such group.
    """
    groups = list(basis.groups)
    reference = options.warping_reference
    if not options.warping:
        return None
    if not groups or basis.width > 1 or not isinstance(basis, Points):
        expected = "False but where groups have times of one column, of few distinct ones, and nothing else"
        remedy = (
            "Leave it out, or write the dataset with {groups} and name one column in {smooth_covariates}."
        )
        raise InputError("warping", True, expected, remedy, groups=..., smooth_covariates=["time"])
    if reference is not None and reference not in groups:
        expected = f"groups among {', '.join(groups)}"
        raise InputError("warping_reference", reference, expected, "Correct the name.")
    return groups.index(reference) if reference is not None else 0


def _bits(options: Options, meta: Meta) -> int:
    if options.precision != "auto":
        return int(options.precision)
    return 64 if meta.n_rows * sum(view.n_features for view in meta.views) < FEW_ENTRIES else 32


def _check_views(option: str, views: object, meta: Meta) -> None:
    """Refuse names of views that there are not."""
    names = [view.name for view in meta.views]
    unknown = [name for name in views if name not in names] if isinstance(views, Mapping) else []
    if unknown:
        raise InputError(option, unknown[0], f"views among {', '.join(names)}", "Correct the name.")


def _check_outcomes(options: Options, meta: Meta) -> None:
    """Refuse outcomes that are no views of one feature, or whose loadings are named as well."""
    outcomes = options.outcomes or {}
    _check_views("outcomes", outcomes, meta)
    for view in meta.views:
        if view.name in outcomes and view.n_features > 1:
            actual = f"view {view.name} of {view.n_features} features"
            remedy = "Name its loadings instead, or write each outcome as a view of its own."
            raise InputError("outcomes", actual, "views of one feature", remedy)
        if view.name in outcomes and isinstance(options.loadings, Mapping) and view.name in options.loadings:
            expected = "views that loadings do not name"
            raise InputError("outcomes", view.name, expected, "Leave the view out of one of the two.")


def check_guided_names(options: Options, meta: Meta) -> None:
    """Refuse guided outcomes whose factor would have the name of another one."""
    names = () if meta.feature_sets is None else meta.feature_sets.names
    for view, outcome in (options.outcomes or {}).items():
        if outcome == "guided" and (view in names or is_number_label(view)):
            expected = "names that no feature set and no factor without a name has"
            remedy = "Rename the view or the set: a guided factor is called by its outcome."
            raise InputError("outcomes", view, expected, remedy)


def likelihoods_of(options: Options, meta: Meta) -> list[tuple[ViewMeta, str]]:
    """Return each view with the name of its likelihood.

    Raises
    ------
    InputError
        For a view that there is not, or a likelihood that does not explain its entries.
    """
    by_view = options.likelihoods if isinstance(options.likelihoods, Mapping) else {}
    _check_views("likelihoods", by_view, meta)
    likelihoods = []
    for view in meta.views:
        likelihood = _as_written(by_view.get(view.name), view)
        if view.likelihood not in get_likelihood(likelihood).kinds:
            suited = [name for name in likelihood_names() if _explains(name, view)]
            raise InputError(
                "likelihoods",
                f"{likelihood} for view {view.name}, which was written as {view.likelihood}",
                f"one of {', '.join(suited)}",
                "Choose one of them, or write the dataset with another likelihood for the view.",
            )
        likelihoods.append((view, _for_view(likelihood, view)))
    if not isinstance(options.likelihoods, str):
        return likelihoods
    kinds = get_likelihood(options.likelihoods).kinds
    if not any(view.likelihood in kinds for view in meta.views):
        stored = ", ".join(f"{view.name} ({view.likelihood})" for view in meta.views)
        raise InputError(
            "likelihoods",
            options.likelihoods,
            f"one that explains entries of a view: {stored}",
            "Leave it out, or write the dataset with another likelihood for the view.",
        )
    return [
        (
            view,
            _for_view(_as_written(options.likelihoods, view), view)
            if view.likelihood in kinds
            else likelihood,
        )
        for view, likelihood in likelihoods
    ]


def sparse_views_of(options: Options, meta: Meta) -> tuple[str, ...]:
    """Return the sparse Gaussian views of which whole rows are missing at most, or sets of their features.

    The updates multiply them with loadings and scores alone; the sampler and noise by sample want more.
    """
    sparse = (view for view in meta.value_views if view.is_sparse(meta.block_rows))
    whole = (view for view in sparse if view.missing != "scattered" or view.n_patterns)
    stored = {view.name for view in whole if not view.location}
    if not stored or options.n_draws or options.noise != "feature":
        return ()
    likelihoods = likelihoods_of(options, meta)
    return tuple(view.name for view, name in likelihoods if view.name in stored and name == "gaussian")


def _view(
    options: Options,
    view: ViewMeta,
    likelihood: str,
    shared_alpha_prior: tuple[float, float] | None,
    outcome: str,
    columns: Sequence[str],
) -> ViewSettings:
    density = get_likelihood(likelihood)
    loadings = loadings_of(options, view.name, outcome)
    if get_prior(loadings).takes_sets and options.feature_sets is None:  # or refuses one that there is not
        expected = f"feature sets where loadings are {loadings}"
        remedy = "Name a GMT file, or give members by set."
        raise InputError("feature_sets", None, expected, remedy)
    if options.bound and not density.has_bound:
        raise InputError(
            "bound",
            True,
            f"False where a view is {density.label} (view {view.name}): it has no such bound",
            "Leave it out, or choose another likelihood for the view.",
        )
    bounded = options.bound or not density.concave
    gaussian = likelihood == "gaussian"
    power = get_prior(loadings).power
    prior = options.ard_prior or shared_alpha_prior or (0.5, 0.5 * density.loading_size**power)
    sizes = _size_factors(options, view.name, density, columns)
    return ViewSettings(
        name=view.name,
        kind=view.likelihood,
        n_features=view.n_features,
        likelihood=likelihood,
        bounded=bounded and not gaussian,
        scattered=not gaussian or view.missing == "scattered",
        alpha_prior=prior,
        loadings=loadings,
        location=view.location if density.is_location else (),
        aux_key=view.aux_key if view.aux and density.aux == view.aux else "",
        size_factors="total" if sizes in LEARNED else sizes,
        size_column=columns.index(sizes) if sizes in columns else None,
        learned_sizes=sizes if sizes in LEARNED else "",
    )


def _size_factors(options: Options, name: str, density: Likelihood, columns: Sequence[str]) -> str:
    choices = options.size_factors
    choice = choices.get(name, "none") if isinstance(choices, Mapping) else choices
    if choice not in {*METHODS, *LEARNED, *columns}:
        expected = f"one of {', '.join(METHODS + LEARNED)}, or a column of the sample metadata"
        raise InputError("size_factors", choice, expected, "Choose one of them.")
    if isinstance(choices, str) and not density.log_link:
        return "none"
    if choice != "none" and not density.log_link:
        expected = f"none for view {name}: {density.name} has no rates"
        raise InputError("size_factors", choice, expected, "Leave the view out.")
    return str(choice)


def _as_written(likelihood: str | None, view: ViewMeta) -> str:
    """Return the likelihood of a view: where it is that of the dataset, with the parameters stored there."""
    stored = view.default_likelihood or view.likelihood
    return stored if likelihood is None or stored.startswith(f"{likelihood}(") else likelihood


def _explains(likelihood: str, view: ViewMeta) -> bool:
    """Return whether a likelihood explains the entries of a view."""
    try:
        _for_view(_as_written(likelihood, view), view)
    except InputError:
        return False
    return view.likelihood in get_likelihood(likelihood).kinds


def _for_view(likelihood: str, view: ViewMeta) -> str:
    """Return a likelihood with the parameters that follow from the entries of a view.

    Raises
    ------
    InputError
        For a view of which the likelihood would take limits for measurements, or lacks what it needs.
    """
    try:
        density = get_likelihood(likelihood).for_entries(view.largest, view.aux)
    except InputError as error:
        raise InputError(
            error.parameter, f"{error.value} for view {view.name}", error.expected, error.remedy
        ) from None
    if view.aux == "censored" and density.aux != view.aux:
        raise InputError(
            "likelihoods",
            f"{density.name} for view {view.name}, which was written with limits",
            "censored: others take limits for measurements",
            "Leave it out, or write the dataset without limits.",
        )
    return str(density)
