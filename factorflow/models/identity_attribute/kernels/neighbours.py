"""Where a neighbour of a frame is that is not in its block: in another one, or nowhere."""

OUTSIDE, NOBODY = -1, -2
