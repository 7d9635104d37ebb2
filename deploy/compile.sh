#!/bin/sh
# Compile the kernels of small fits of all families into NUMBA_CACHE_DIR, so that containers need not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# what is simulated, then the options of its fit
compile() {
    simulated=$1
    shift
    factorflow simulate "$simulated" --out "$folder/$simulated.zarr" --set n_samples=200
    factorflow fit "$folder/$simulated.zarr" --out "$folder/$simulated-fit.zarr" "$@"
}

compile sparse_gfa --set n_factors=3 --max-iter 20
compile binary --set n_factors=3 --max-iter 20
compile probit --model probit --set n_factors=3 --set n_burn_in=5 --set n_draws=5 --set chains=1
compile molten_poisson --model molten_poisson --set n_components=2 --max-iter 10
compile molten_normal --model molten_normal --set n_components=2 --max-iter 10
compile identity_attribute --model identity_attribute --set n_identities=2 --max-iter 10
