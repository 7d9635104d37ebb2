"""Settings of a GP-LVM-CMF: sizes of the dataset, and constants."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from factorflow.core.block import Meta
from factorflow.core.extras import install
from factorflow.errors import InputError

Family = Literal["gp", "mean_field", "full"]
"""Forms of q(z): coupled by the Gaussian process, or row by row, diagonal or with full covariance."""

SCRATCH = 1 << 24
"""Bytes of the tensors of the rows that are differentiated together, about; fixed: their number is part of
the bits."""

TENSORS = 8
"""Copies of an array of the rows that are alive at once while it is differentiated, about (measured)."""


@dataclass(frozen=True)
class View:
    """A view that is explained: name, likelihood, number of features (D), `ViewMeta.location`."""

    name: str
    likelihood: Literal["gaussian", "bernoulli"]
    n_features: int
    location: tuple[float, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Roles of the views, sizes and variants.

    Parameters
    ----------
    given : tuple of str
        Covariate views that X is; none: X is learned.
    n_rows, n_factors, n_inputs, n_inducing, hidden, reverse_hidden : int
        N, Q, R, M; units of a decoder and of the network of r(X|z).
    draws, evaluation_draws : int
        Draws of z that a step, and an evaluation, averages over.
    rate, row_rate : float
        Adam's step length, of globals and of rows, when a stage begins.
    noise_floor : float
        Least variance of a Gaussian feature, relative to its variance in the data.
    jitter : float
        Added to the diagonal of K_uu, times s2.
    """

    views: tuple[View, ...]
    given: tuple[str, ...]
    n_rows: int
    n_factors: int
    n_inputs: int
    n_inducing: int
    hidden: int
    reverse_hidden: int
    coupling: Family
    q_u: Literal["point", "free", "prior"]
    q_x: Literal["full", "diagonal"]
    r_x: Literal["laplace", "mlp"]
    bound: Literal["joint", "product"]
    draws: int
    evaluation_draws: int
    rate: float
    row_rate: float
    noise_floor: float
    jitter: float = 1e-6

    @property
    def draws_u(self) -> bool:
        """Whether u has a distribution: then a step takes two passes over all rows."""
        return self.coupling == "gp" and self.q_u != "point"

    @property
    def alone(self) -> Family:
        """How q(z) is held in the warm-up: by the Gaussians that come nearest to what the process holds.

        Decoders that were learned with a diagonal q(z) settle where factors are not correlated given a row,
        and stay there. Where X is given, or q(X) is diagonal, the process does not hold more itself.
        """
        return "full" if self.spreads_inputs and self.q_x == "full" else "mean_field"

    @property
    def spreads_inputs(self) -> bool:
        """Whether the spread of X carries that of z.

        Not under the product bound: r, which knows X from z, is compared there with an X that is independent
        of z, and loses by what it knows.
        """
        return self.learns_inputs and self.bound == "joint"

    @property
    def learns_inputs(self) -> bool:
        """Whether X is learned."""
        return not self.given

    @property
    def chunk(self) -> int:
        """Rows of a block that are differentiated together; fixed, since it is part of the bits."""
        rows = SCRATCH // (8 * self.row_width)
        return max(16, min(1024, 1 << max(0, rows.bit_length() - 1)))

    @property
    def row_width(self) -> int:
        """Numbers of a row that are alive at once while it is differentiated, about."""
        decoders = sum(self.hidden + 2 * view.n_features for view in self.views)
        covariances = self.n_factors**2  # of z, in the warm-up and where q(z) is compared with full Gaussians
        process = self.n_inducing + self.n_inputs * (self.n_factors + 2 * self.n_inputs)
        return TENSORS * (decoders + max(process, self.n_inducing + covariances))


def decoder(view: str, part: str) -> str:
    """Return the name of a parameter of the decoder of a view."""
    return f"decoder {view} {part}"


def check_torch() -> None:
    """Refuse to go on without PyTorch."""
    if find_spec("torch") is None:
        raise InputError(
            "model", "gplvm_cmf", "PyTorch, which computes its gradients, to be installed", install("torch")
        )


def check_meta(
    meta: Meta, names: tuple[str, ...], n_inputs: int | None, n_factors: int
) -> tuple[tuple[View, ...], int]:
    """Return the views that are explained, and the number of inputs (R); refuse what does not suit.

    Raises
    ------
    InputError
        When a view is of a kind that the model does not know, or an input is not a covariate.
    """
    views_by_name = {view.name: view for view in meta.views}
    for name in names:
        if name not in views_by_name or views_by_name[name].likelihood != "covariate":
            covariates = ", ".join(v.name for v in meta.views if v.likelihood == "covariate")
            raise InputError(
                "given",
                f"{name} ({views_by_name[name].likelihood})" if name in views_by_name else name,
                f"covariate views: {covariates or 'the dataset has none'}",
                "Write the dataset with the inputs as a view of kind 'covariate': inputs.",
            )
    views = []
    for view in meta.views:
        if view.name in names:
            continue
        if view.likelihood not in ("gaussian", "bernoulli"):
            raise InputError(
                f"view {view.name}",
                view.likelihood,
                "a Gaussian or Bernoulli view, or a covariate named in `given`",
                "Name the views to model with `views`.",
            )
        views.append(View(view.name, view.likelihood, view.n_features, view.location))
    if not views:
        raise InputError("views", "a view of inputs", "a Gaussian or Bernoulli view", "Add one.")
    width = sum(views_by_name[name].n_features for name in names)
    if names and n_inputs not in (None, width):
        raise InputError(
            "n_inputs", n_inputs, f"{width}, the columns of {', '.join(names)}", "Leave it out: X is given."
        )
    return tuple(views), width if names else n_inputs or n_factors
