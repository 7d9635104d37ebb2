"""Predictions of sparse group factor analysis: mean, standard deviation and intervals of new observations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from factorflow.kernels import device
from factorflow.kernels.linalg import triangle
from factorflow.likelihoods.predictive import Predictive
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.start.components import fit_alone
from factorflow.models.sparse_gfa.state import Fixed


def predict(
    settings: Settings, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
    """Return mean and standard deviation of new observations, on the data scale.

    The variance of x = a'b + w'z has the parts of b, of z (as if scores were independent; of rows that have
    covariates which are not known, of z and these together), and of w. The
    noise adds E[1 / tau] = b / (a - 1) of q(tau) = Ga(a, b); other views have the variance of their
    likelihood.
    """
    distribution = predictive(settings, block, rows, record, name)
    if distribution is not None:
        return distribution.mean_and_sd()
    x, variance = _predictor(rows, record, name)
    noise = np.asarray(record[f"scale_{name}"]) ** 2
    if f"noise_precision_{name}" in record:
        noise = 1.0 / _of_group(rows, np.asarray(record[f"noise_precision_{name}"]))
        degrees = _of_group(rows, np.asarray(record[f"noise_degrees_{name}"]))
        noise = noise * degrees / np.maximum(degrees - 2.0, 1e-2 * degrees)
    if "sample_precision" in rows:
        index = [view.name for view in settings.views].index(name)
        noise = noise / np.asarray(rows["sample_precision"])[:, index, None]
    return x, np.sqrt(variance + noise)


def predictive(
    settings: Settings, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> Predictive | None:
    """Return the distribution of new observations on the data scale; None of Gaussian views."""
    view = settings.view(name)
    if view.is_gaussian:
        return None
    report = {key: record[f"{key}_{name}"] for key in view.density.phi_variables}
    x, variance = _predictor(rows, record, name)
    if view.size_factors != "none":
        index = [each.name for each in settings.views].index(name)
        x = x + np.log(np.asarray(rows["size_factors"])[:, index, None])
        if "log_size_factors_variance" in rows:
            variance = variance + np.asarray(rows["log_size_factors_variance"])[:, index, None]
    phi, aux = view.density.phi_from_report(report), aux_of_new(settings, block, name)
    return Predictive(view.density, x, variance, phi, aux)


def aux_of_new(settings: Settings, block: Block, name: str) -> Float64[Array, "B D"] | None:
    """Return what predictions know beside entries; of those that are missing one trial is taken."""
    view = settings.view(name)
    if not view.aux_key or view.aux_key not in block.data:
        return None
    aux = device.on_host(block.data[view.aux_key]).astype(np.float64)
    return np.maximum(aux, 1.0) if view.density.aux == "trials" else aux


def alone(
    settings: Settings, fixed: Fixed, name: str
) -> tuple[Float64[Array, " D"], Float64[Array, "P D"]] | None:
    """Return the likelihood fitted to each feature alone, in data units; None of the default of a kind."""
    view = settings.view(name)
    if view.density.name == view.kind:
        return None
    x, phi = fit_alone(view, fixed)
    if view.density.n_phi:
        phi = view.density.phi_from_report(view.density.report_phi(phi, fixed.scale))
    return x * fixed.scale + view.level(fixed.reference), phi


def degrees_of_freedom(
    rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> Float64[Array, "#B D"] | None:
    """Return the degrees of freedom of Student's t of new measurements, 2 a; None where there are none."""
    if f"noise_degrees_{name}" not in record:
        return None
    return np.atleast_2d(_of_group(rows, np.asarray(record[f"noise_degrees_{name}"])))


def _predictor(
    rows: Mapping[str, Array], record: Mapping[str, Array], name: str
) -> tuple[Float64[Array, "B D"], Float64[Array, "B D"]]:
    """Return mean and variance of x in data units."""
    scores, uncertain = np.asarray(rows["scores"]), np.asarray(rows["scores_variance"])
    loadings, spread = np.asarray(record[f"loadings_{name}"]), np.asarray(record[f"loadings_variance_{name}"])
    x = scores @ loadings.T + record[f"intercept_{name}"]
    variance = (scores**2 + uncertain) @ spread.T + uncertain @ (loadings**2).T
    if f"coefficients_{name}" not in record:
        return x, variance + record[f"intercept_variance_{name}"]
    covariates, packed = np.asarray(rows["covariates"]), np.asarray(record[f"coefficients_covariance_{name}"])
    coefficients = np.asarray(record[f"coefficients_{name}"])
    design = np.concatenate([np.ones((len(covariates), 1)), covariates], axis=1)
    first, second = triangle(design.shape[1])
    products = design[:, first] * design[:, second] * np.where(first == second, 1.0, 2.0)
    if "scores_covariance" in rows:
        covariance, k = np.asarray(rows["scores_covariance"], np.float64), loadings.shape[1]
        weights = np.concatenate([loadings, coefficients], axis=1)
        high, low = triangle(weights.shape[1])
        covariance = covariance * np.where(high == low, 1.0, 2.0)
        is_incomplete = covariance.any(axis=1)
        together = covariance[is_incomplete] @ (weights[:, high] * weights[:, low]).T
        variance[is_incomplete] += together - uncertain[is_incomplete] @ (loadings**2).T
        products[:, second > 0] += covariance[:, low >= k]
    return x + covariates @ coefficients.T, variance + products @ packed.T


def _of_group(rows: Mapping[str, Array], values: Float64[Array, "*shape"]) -> Float64[Array, "*rows"]:
    """Return what holds for each row, of an array by feature or by group and feature."""
    return values if values.ndim == 1 else values[np.asarray(rows["noise_group"]).astype(int)]
