"""Parts of the data: which blocks an iteration of a stochastic or incremental stage visits.

The blocks are dealt to the parts run by run: of each run of as many neighbouring blocks as there are parts,
every part gets one, shuffled anew for each run and epoch by the counter. So any contiguous share of the
blocks, such as a worker's, has the same work in every part, and rows that are sorted by group or batch are
spread over all parts. Each block is in one part of an epoch, and in a given iteration with probability one
over the number of parts.
"""

from __future__ import annotations

import numpy as np

from factorflow.kernels.random import Step
from factorflow.kernels.sites import ENGINE

PARTS_SITE = ENGINE[0]
"""Noise: one uniform for each block."""


def part_of(blocks: range, n_parts: int, iteration: int, seed: int) -> frozenset[int]:
    """Return the blocks of a run that belong to the part of an iteration.

    Parameters
    ----------
    iteration : int
        Of the stage, from 0.
    """
    if not blocks:
        return frozenset()
    epoch, turn = divmod(iteration, n_parts)
    runs = np.arange(blocks.start // n_parts, -(-blocks.stop // n_parts))
    places = np.arange(runs[0] * n_parts, (runs[-1] + 1) * n_parts)
    noise = Step(seed, 0, epoch).uniform(PARTS_SITE, places, 1).reshape(len(runs), n_parts)
    place = noise.argsort(axis=1, kind="stable")[:, turn]
    return frozenset(int(n) for n in runs * n_parts + place if int(n) in blocks)
