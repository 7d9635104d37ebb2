"""Numerics of probit factor models: one scalar source for the CPU and for CUDA."""
