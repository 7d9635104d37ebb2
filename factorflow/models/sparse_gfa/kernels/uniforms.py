"""Uniforms of `Step.uniform` by a compiled loop: a sweep of few samples draws at many sites, few at each."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from factorflow.kernels.scalar.philox import philox_pair


def loop_uniforms(seed, index, iteration, place, out):
    """Set out to the words of each index; ``place`` is site | chain << 16."""
    words = out.shape[1]
    for i in range(out.shape[0]):
        for pair in range((words + 1) // 2):
            first, second = philox_pair(seed, index[i], np.uint64(pair), iteration, place)
            out[i, 2 * pair] = first
            if 2 * pair + 1 < words:
                out[i, 2 * pair + 1] = second
