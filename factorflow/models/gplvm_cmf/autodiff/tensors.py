"""Arrays to tensors and back, and the one thread that a task has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from jaxtyping import Float64

from factorflow.kernels.device import on_device
from factorflow.shape import Array, Block

__all__ = ["as_array", "as_tensor", "device_of", "one_thread", "total", "with_gradients"]

HOST = torch.device("cpu")


def one_thread() -> None:
    """Have PyTorch use one thread from now on: two threads give other bits than one.

    Parallel work comes from blocks. It counts for the whole process, and is asked for anew by each task: a
    new thread of Python begins with as many as the machine has.
    """
    torch.set_num_threads(1)


def device_of(block: Block) -> torch.device:
    """Return where the values of a block are to be worked on."""
    return torch.device("cuda") if any(map(on_device, block.data.values())) else HOST


def as_tensor(array: Array, device: torch.device = HOST) -> torch.Tensor:
    """Return a float64 copy of an array, aligned as PyTorch aligns: that too is part of the bits."""
    return torch.tensor(np.asarray(array, dtype=np.float64), device=device)


def as_array(tensor: torch.Tensor) -> Float64[np.ndarray, "*_"]:
    """Return a copy of a tensor in the host's memory."""
    return np.array(tensor.detach().cpu().numpy(), dtype=np.float64)


def with_gradients(
    arrays: Mapping[str, Array], wanted: Iterable[str], device: torch.device
) -> dict[str, torch.Tensor]:
    """Return arrays as tensors, of which some are to be differentiated by."""
    names = set(wanted)
    return {name: as_tensor(a, device).requires_grad_(name in names) for name, a in arrays.items()}


def total(tensors: Mapping[str, torch.Tensor], wanted: Iterable[str]) -> dict[str, Array]:
    """Return the gradients that were added up in some tensors; 0 of what nothing depends on."""
    found = {}
    for name in wanted:
        gradient = tensors[name].grad
        found[name] = np.zeros(tuple(tensors[name].shape)) if gradient is None else as_array(gradient)
    return found
