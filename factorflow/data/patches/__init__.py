"""From photographs and films to sequences of patches: windows that move, and what their pixels become."""
