"""R-hat over chains, as the root looks at it between draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def split_rhat(values: NDArray[np.float64]) -> float:
    """Return split R-hat of draws (chains, draws); infinite for fewer than four draws.

    The plain version (Gelman et al., Bayesian Data Analysis, 3rd edition, section 11.4), because it decides
    when to stop; summaries of a finished run use rank-normalised R-hat from arviz-stats.
    """
    half = values.shape[1] // 2
    if half < 2:
        return float("inf")
    halves = np.concatenate([values[:, :half], values[:, -half:]])
    within = float(np.mean(np.var(halves, axis=1, ddof=1)))
    between = half * float(np.var(np.mean(halves, axis=1), ddof=1))
    if within == 0.0:
        return 1.0 if between == 0.0 else float("inf")
    return float(np.sqrt((half - 1) / half + between / (half * within)))
