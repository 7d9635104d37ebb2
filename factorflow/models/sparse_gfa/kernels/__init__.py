"""Numerics of sparse group factor analysis, on the CPU and on CUDA."""
