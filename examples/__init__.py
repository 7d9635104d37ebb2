"""Examples that are run from a clone: photographs as sequences of patches, and published experiments."""
