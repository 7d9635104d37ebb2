"""Executors of tasks: this process, its threads, Dask."""
