"""Where tasks run: this process, its threads, Dask."""
