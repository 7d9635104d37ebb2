"""Numerics of molten component analysis."""
