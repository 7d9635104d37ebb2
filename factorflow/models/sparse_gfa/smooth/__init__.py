"""Smooth scores: factors that are functions of time, space or dose, and of the group of a sample.

The model and its updates stand in `courses`, what blocks do in `rows` and `site_sums`, the functions in
`basis`, `points`, `cosines` and `processes`, the passes in `sweeps`.
"""
