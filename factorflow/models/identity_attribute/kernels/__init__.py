"""Compiled loops of the identity/attribute model, and the small matrices they are made of."""

from __future__ import annotations

from typing import Any

from factorflow.kernels import device

__all__ = ["loops_for"]


def loops_for(array: Any) -> Any:
    """Return the module of loops that work where an array lies: `kernels.cuda` or `kernels.host`.

    Both have the same functions with the same arguments.
    """
    if device.on_device(array):
        from factorflow.models.identity_attribute.kernels import cuda

        return cuda
    from factorflow.models.identity_attribute.kernels import host

    return host
