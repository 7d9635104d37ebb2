#!/bin/sh
# Compile the kernels of a small fit into NUMBA_CACHE_DIR, so that containers need not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
factorflow simulate sparse_gfa --out "$folder/data.zarr" --set n_samples=200
factorflow fit "$folder/data.zarr" --out "$folder/fit.zarr" --set n_factors=3 --max-iter 20
