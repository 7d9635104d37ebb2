"""The loops of the identity/attribute model on the CPU; `kernels.cuda` has the same ones for devices."""

from factorflow.models.identity_attribute.kernels.all_chains import smooth_all
from factorflow.models.identity_attribute.kernels.attribute_messages import attribute_message
from factorflow.models.identity_attribute.kernels.chains import smooth_attributes
from factorflow.models.identity_attribute.kernels.frames import update_complete
from factorflow.models.identity_attribute.kernels.incomplete_frames import update_gaps
from factorflow.models.identity_attribute.kernels.presence import presence_message, smooth_presence
from factorflow.models.identity_attribute.kernels.small import invert_all
from factorflow.models.identity_attribute.kernels.statistics import (
    covariances,
    sum_chain_statistics,
    sum_statistics,
    write_means,
)

__all__ = [
    "attribute_message",
    "covariances",
    "invert_all",
    "write_means",
    "presence_message",
    "smooth_all",
    "smooth_attributes",
    "smooth_presence",
    "sum_chain_statistics",
    "sum_statistics",
    "update_complete",
    "update_gaps",
]
