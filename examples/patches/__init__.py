"""From photographs and films to sequences of patches, and what a model learnt of them as pictures."""

from __future__ import annotations

from examples.patches.figures import plot_fields, plot_pairs, plot_phase_energy
from examples.patches.gabor import fit_gabor, gabor_function
from examples.patches.pairs import compare_pairs, describe_pairs, phase_energy
from examples.patches.report import write_report
from examples.patches.transform import PatchTransform
from examples.patches.write import write_patches

__all__ = [
    "PatchTransform",
    "compare_pairs",
    "describe_pairs",
    "fit_gabor",
    "gabor_function",
    "phase_energy",
    "plot_fields",
    "plot_pairs",
    "plot_phase_energy",
    "write_patches",
    "write_report",
]
