"""The loops of the identity/attribute model on the CPU; `kernels.cuda` has the same ones for devices."""

from factorflow.models.identity_attribute.kernels.chains import smooth_attributes
from factorflow.models.identity_attribute.kernels.frames import update_complete
from factorflow.models.identity_attribute.kernels.incomplete_frames import update_gaps
from factorflow.models.identity_attribute.kernels.presence import smooth_presence, span_presence
from factorflow.models.identity_attribute.kernels.small import invert_all
from factorflow.models.identity_attribute.kernels.spans import span_attributes
from factorflow.models.identity_attribute.kernels.tallies import (
    covariances,
    means,
    tally,
    tally_chain,
)
from factorflow.models.identity_attribute.kernels.turns import smooth_all

__all__ = [
    "covariances",
    "invert_all",
    "means",
    "smooth_all",
    "smooth_attributes",
    "smooth_presence",
    "span_attributes",
    "span_presence",
    "tally",
    "tally_chain",
    "update_complete",
    "update_gaps",
]
