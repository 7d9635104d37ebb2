"""Arrays to tensors and back, and the one thread that a task has."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float64

from factorflow.core.block import Array, Block
from factorflow.kernels.device import on_device

HOST = torch.device("cpu")


_lock = threading.Lock()
_users = 0
_own_threads = 1
"""Threads of PyTorch before the first of the present users of `one_thread`."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Have PyTorch use one thread meanwhile, and as many as before when it ends; also as a decorator.

    Two threads give other bits than one; parallel work comes from blocks. The number counts for the thread
    of Python that sets it and for those that first use PyTorch afterwards, so each use of it sets its own.
    """
    global _users, _own_threads
    with _lock:
        if not _users:
            _own_threads = _default_n_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            torch.set_num_threads(_own_threads)


def _default_n_threads() -> int:
    """Return how many threads PyTorch has where nobody limits them: in a new thread of Python.

    In the present one those of OpenMP may be limited, for all libraries, while a run lasts.
    """
    n_threads: list[int] = []
    thread = threading.Thread(target=lambda: n_threads.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return n_threads[0]


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
    arrays: Mapping[str, Array], differentiated: Iterable[str], device: torch.device
) -> dict[str, torch.Tensor]:
    """Return arrays as tensors, of which some are to be differentiated by."""
    names = set(differentiated)
    return {name: as_tensor(a, device).requires_grad_(name in names) for name, a in arrays.items()}


def total(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> dict[str, Array]:
    """Return the gradients that were added up in some tensors; 0 of what nothing depends on."""
    gradients = {}
    for name in names:
        gradient = tensors[name].grad
        gradients[name] = np.zeros(tuple(tensors[name].shape)) if gradient is None else as_array(gradient)
    return gradients
