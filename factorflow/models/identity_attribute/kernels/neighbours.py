"""Neighbours of frames at the edges of blocks: in another block, or none."""

OUTSIDE, NOBODY = -1, -2
