"""Published experiments, run anew: one module each, used by `factorflow reproduce`."""
