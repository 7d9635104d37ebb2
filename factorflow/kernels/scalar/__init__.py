"""Scalar functions in plain Python; `factorflow.kernels.compile` compiles them for CPU and CUDA."""
