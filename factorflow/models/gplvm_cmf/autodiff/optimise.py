"""Adam, as PyTorch has it [1]_, on arrays: the state comes in and goes out.

References
----------
.. [1] D. P. Kingma, J. Ba (2015), "Adam: a method for stochastic optimization", ICLR.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from factorflow.models.gplvm_cmf.autodiff.tensors import as_array, as_tensor
from factorflow.models.gplvm_cmf.state import Arrays
from factorflow.shape import Array

__all__ = ["ascend", "optimiser"]


def optimiser(parameters: list[torch.Tensor], rate: float) -> torch.optim.Adam:
    """Return Adam, going uphill; one parameter at a time, so that the bits do not depend on how many there are."""
    return torch.optim.Adam(parameters, lr=rate, maximize=True, foreach=False)


def ascend(
    values: Arrays, first: Arrays, second: Arrays, gradients: Arrays, steps: float, rate: float
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Return parameters and moments after one step along the gradients; others stay.

    Parameters
    ----------
    values, first, second : mapping of str to array
        Parameters, and running means of their gradients and of the squares.
    gradients : mapping of str to array
        Of those that move.
    steps : float
        Steps before this one.
    rate : float
        Length of a step.
    """
    out: tuple[dict[str, Array], ...] = dict(values), dict(first), dict(second)
    tensors = {name: as_tensor(values[name]).requires_grad_() for name in gradients}
    if not tensors:
        return out[0], out[1], out[2]
    adam = optimiser(list(tensors.values()), rate)
    for name, tensor in tensors.items():
        tensor.grad = as_tensor(gradients[name])
        adam.state[tensor] = {
            "step": torch.tensor(float(steps), dtype=torch.float64),
            "exp_avg": as_tensor(first[name]),
            "exp_avg_sq": as_tensor(second[name]),
        }
    adam.step()
    for name, tensor in tensors.items():
        state: Mapping[str, torch.Tensor] = adam.state[tensor]
        for place, found in zip(out, (tensor, state["exp_avg"], state["exp_avg_sq"]), strict=True):
            place[name] = as_array(found)
    return out[0], out[1], out[2]
