"""Through the rows of a block, arrays in, arrays out: values, gradients, fits of rows, importance sampling.

Rows go in chunks of a fixed size (`Settings.chunk`) from the start of the block, so that neither the memory
nor the bits depend on how the blocks are shared out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from factorflow.core.block import Array, Block
from factorflow.kernels.device import on_device
from factorflow.models.gplvm_cmf.autodiff.bound import Terms, terms_of_rows
from factorflow.models.gplvm_cmf.autodiff.coupling import unpack_cholesky
from factorflow.models.gplvm_cmf.autodiff.kernel import between, features, inducing
from factorflow.models.gplvm_cmf.autodiff.likelihood import log_likelihood
from factorflow.models.gplvm_cmf.autodiff.optimise import Adam
from factorflow.models.gplvm_cmf.autodiff.reverse import guess_inducing
from factorflow.models.gplvm_cmf.autodiff.tensors import (
    as_array,
    as_tensor,
    device_of,
    one_thread,
    total,
    with_gradients,
)
from factorflow.models.gplvm_cmf.settings import SCRATCH, Family, Settings
from factorflow.models.gplvm_cmf.state import Arrays, Cotangents, Standardisation

LIBRARY = 192 << 20
"""Bytes that PyTorch takes once it is loaded (measured: 150 to 190 MiB)."""

WIDENED = 1.3
"""Factor of the standard deviations of the proposal of the importance sampling."""

TOGETHER = 10
"""Draws of the importance sampling that are decoded at once."""

Noise = Sequence[Arrays]
"""Standard normals of each draw (`bound.terms_of_rows`)."""


@dataclass(frozen=True)
class Data:
    """The values of some rows (B of them).

    Parameters
    ----------
    views : mapping of str to pair of (B, D) tensors
        Standardised values, and where they are observed.
    constant : (B,) tensor
        What the log density exceeds that of standardised values by.
    """

    views: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    constant: torch.Tensor

    def select(self, where: slice) -> Data:
        """Return some of the rows."""
        return Data({name: (y[where], s[where]) for name, (y, s) in self.views.items()}, self.constant[where])


@dataclass(frozen=True)
class PassInputs:
    """What a pass over rows is given.

    Parameters
    ----------
    family : {"gp", "mean_field", "full"}
        How q(z) is held.
    values, local : mapping of str to array
        Parameters, and those of the rows; ``inputs`` of the rows also where X is given.
    """

    settings: Settings
    family: Family
    values: Arrays
    local: Arrays
    data: Data


@one_thread()
def read_block(settings: Settings, block: Block, fixed: Standardisation) -> Data:
    """Return the values of a block as tensors, where they are worked on."""
    device, views = device_of(block), {}
    constant = torch.zeros(block.n_rows, dtype=torch.float64, device=device)
    for view in settings.views:
        raw = block.data[view.name]
        y = torch.from_dlpack(raw).to(torch.float64) if on_device(raw) else as_tensor(raw)
        observed = (y == y) if view.likelihood == "gaussian" else (y >= 0)
        if view.likelihood == "gaussian":
            scale = as_tensor(fixed.scale[view.name], device)
            y = (y - as_tensor(fixed.location[view.name], device)) / scale
            constant = constant - observed.to(torch.float64) @ scale.log()
        views[view.name] = torch.where(observed, y, 0.0), observed.to(torch.float64)
    return Data(views, constant)


def rows_of(arrays: Arrays, where: slice) -> dict[str, Array]:
    """Return some rows of arrays that lead with the rows."""
    return {name: array[where] for name, array in arrays.items()}


@contextmanager
def account_memory() -> Iterator[None]:
    """Hold an untouched array as large as the tensors of a chunk, and PyTorch itself.

    The engine weighs what `map` takes by the memory of arrays, and does not see that of tensors.
    """
    reserved = np.empty(SCRATCH + LIBRARY, np.uint8)
    yield
    del reserved


def _chunks(settings: Settings, n_rows: int) -> list[slice]:
    return [slice(i, min(i + settings.chunk, n_rows)) for i in range(0, n_rows, settings.chunk)]


def noise_of_chunk(noise: Arrays, where: slice, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the noise of some rows; that of w is the same for all."""
    return {n: as_tensor(a if n.startswith("w") else a[where], device) for n, a in noise.items()}


@one_thread()
def differentiate(
    inputs: PassInputs, noise: Noise, globals_: Sequence[str], rows: Sequence[str], pending: Cotangents | None
) -> tuple[float, dict[str, Array], dict[str, Array]]:
    """Return the bound of some rows, its mean over draws, and its gradients.

    Parameters
    ----------
    globals_, rows : sequence of str
        The parameters to differentiate by; the gradients with respect to ``globals_`` are sums over the rows.
    pending : Cotangents or None
        With respect to G and h, whose share in the gradient goes back through these rows.
    """
    settings, device = inputs.settings, inputs.data.constant.device
    values, bound = with_gradients(inputs.values, globals_, device), 0.0
    gradients: dict[str, list[Array]] = {name: [] for name in rows}
    with account_memory():
        for where in _chunks(settings, len(inputs.data.constant)):
            local, data = (
                with_gradients(rows_of(inputs.local, where), rows, device),
                inputs.data.select(where),
            )
            for s, draw in enumerate(noise):
                terms = terms_of_rows(
                    settings, inputs.family, values, local, data.views, noise_of_chunk(draw, where, device)
                )
                aim = terms.bound.sum() / len(noise)
                bound += float(aim.detach()) + float(data.constant.sum()) / len(noise)
                add_pending(aim, terms, pending, s).backward()
            for name, gradient in total(local, rows).items():
                gradients[name].append(gradient)
    return bound, total(values, globals_), {name: np.concatenate(parts) for name, parts in gradients.items()}


def add_pending(aim: torch.Tensor, terms: Terms, pending: Cotangents | None, s: int) -> torch.Tensor:
    """Return what is differentiated: the bound of the rows, and their share in the rest by way of G and h."""
    if pending is None or terms.gram is None or terms.shift is None:
        return aim
    device = aim.device
    aim = aim + (as_tensor(pending.gram[s], device) * terms.gram).sum()
    return aim + (as_tensor(pending.shift[s], device) * terms.shift).sum()


@one_thread()
def evaluate(
    inputs: PassInputs, noise: Noise
) -> tuple[
    Float64[np.ndarray, " B"], Float64[np.ndarray, "S Q M M"] | None, Float64[np.ndarray, "S Q M"] | None
]:
    """Return the bound of each row, its mean over draws; and their share in G and h of each draw."""
    settings, device = inputs.settings, inputs.data.constant.device
    values, bounds = with_gradients(inputs.values, (), device), []
    grams: list[torch.Tensor | float] = [0.0 for _ in noise]
    shifts: list[torch.Tensor | float] = [0.0 for _ in noise]
    with torch.no_grad(), account_memory():
        for where in _chunks(settings, len(inputs.data.constant)):
            local, data = with_gradients(rows_of(inputs.local, where), (), device), inputs.data.select(where)
            bound = data.constant
            for s, draw in enumerate(noise):
                terms = terms_of_rows(
                    settings, inputs.family, values, local, data.views, noise_of_chunk(draw, where, device)
                )
                bound = bound + terms.bound / len(noise)
                if terms.gram is not None and terms.shift is not None:
                    grams[s], shifts[s] = grams[s] + terms.gram, shifts[s] + terms.shift
            bounds.append(as_array(bound))
    if inputs.family != "gp" or not settings.draws_u:
        return np.concatenate(bounds), None, None
    gram, shift = (np.stack([as_array(torch.as_tensor(part)) for part in parts]) for parts in (grams, shifts))
    return np.concatenate(bounds), gram, shift


@one_thread()
def cotangents(
    settings: Settings,
    values: Arrays,
    noise: Noise,
    gram: Float64[np.ndarray, "S Q M M"],
    shift: Float64[np.ndarray, "S Q M"],
) -> Cotangents:
    """Return log r(w|z) - log q(w), its mean over draws, and its derivatives, given G and h of all rows."""
    names = [name for name in ("w", "w_factor") if name in values]
    host = torch.device("cpu")
    leaves = with_gradients(values, names, host)
    sums = [as_tensor(array).requires_grad_() for array in (gram, shift)]
    bound = torch.zeros((), dtype=torch.float64)
    for s, draw in enumerate(noise):
        alpha = as_tensor(draw["w"])
        bound = bound + guess_inducing(settings, leaves, alpha, sums[0][s], sums[1][s]) / len(noise)
    bound.backward()
    derivatives = [np.zeros(tuple(x.shape)) if x.grad is None else as_array(x.grad) for x in sums]
    return Cotangents(derivatives[0], derivatives[1], total(leaves, names), float(bound.detach()))


@one_thread()
def regress(
    settings: Settings, values: Arrays, inputs: Float64[np.ndarray, "B R"], z: Float64[np.ndarray, "B Q"]
) -> tuple[Float64[np.ndarray, "M M"], Float64[np.ndarray, "M Q"]]:
    """Return sums of a a' and of a z' over rows, a = a(x_i): the normal equations of z on a."""
    with torch.no_grad():
        process = inducing(with_gradients(values, (), torch.device("cpu")), settings.jitter)
        gram = torch.zeros_like(process.factor)
        right = torch.zeros(len(gram), z.shape[1], dtype=torch.float64)
        for where in _chunks(settings, len(z)):
            a, _ = features(process, between(process, as_tensor(inputs[where])))
            gram, right = gram + a.T @ a, right + a.T @ as_tensor(z[where])
    return as_array(gram), as_array(right)


@one_thread()
def fit_rows(
    inputs: PassInputs, noise: Callable[[int], Arrays], n_steps: int, rate: float
) -> dict[str, Array]:
    """Return the parameters of rows after steps of Adam under decoders that stay as they are.

    Parameters
    ----------
    noise : callable
        Of the number of a step: standard normals of all rows.
    rate : float
        Length of the first step; it falls to 0 as a cosine.
    """
    settings, device = inputs.settings, inputs.data.constant.device
    values = with_gradients(inputs.values, (), device)
    parts: dict[str, list[Array]] = {name: [] for name in inputs.local}
    moving = [name for name in inputs.local if name != "inputs" or settings.learns_inputs]
    chunks = _chunks(settings, len(inputs.data.constant))
    locals_ = [with_gradients(rows_of(inputs.local, where), moving, device) for where in chunks]
    with account_memory():
        adams = [Adam([local[name] for name in moving]) for local in locals_]
        for count in range(n_steps):
            draw = noise(count)
            length = rate * 0.5 * (1.0 + math.cos(math.pi * count / n_steps))
            for where, local, adam in zip(chunks, locals_, adams, strict=True):
                data = inputs.data.select(where).views
                terms = terms_of_rows(
                    settings, inputs.family, values, local, data, noise_of_chunk(draw, where, device)
                )
                adam.step(torch.autograd.grad(terms.bound.sum(), adam.tensors), length)
    for local in locals_:
        for name, tensor in local.items():
            parts[name].append(as_array(tensor))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


@one_thread()
def importance(
    inputs: PassInputs, noise: Callable[[int, int], Float64[np.ndarray, "B _"]], n_draws: int
) -> Float64[np.ndarray, " B"]:
    """Return estimates of log p(y_i), draws from rows' own Gaussians (family "full"), widened.

    Parameters
    ----------
    noise : callable
        Of the number of a call and of words: standard normals of all rows.
    """
    settings, device = inputs.settings, inputs.data.constant.device
    q, log_weights = settings.n_factors, []
    with torch.no_grad(), account_memory():
        values = with_gradients(inputs.values, (), device)
        local = with_gradients(inputs.local, (), device)
        factor = WIDENED * unpack_cholesky(local["factor"], q)
        for first in range(0, n_draws, TOGETHER):
            n = min(TOGETHER, n_draws - first)
            draw = noise(first // TOGETHER, n * q).reshape(-1, n, q)
            parts = []
            for where in _chunks(settings, len(inputs.data.constant)):
                e = as_tensor(draw[where], device)
                z = local["mean"][where, None, :] + e @ factor[where].mT
                log_q = -0.5 * (e**2).sum(2) - factor[where].diagonal(dim1=1, dim2=2).log().sum(1)[:, None]
                data = {
                    name: (y[:, None], s[:, None]) for name, (y, s) in inputs.data.select(where).views.items()
                }
                log_p = log_likelihood(settings, values, data, z) - 0.5 * (z**2).sum(2)
                parts.append(log_p - log_q)
            log_weights.append(torch.cat(parts))
        weights = torch.cat(log_weights, 1)
        return as_array(torch.logsumexp(weights, 1) - math.log(n_draws) + inputs.data.constant)
