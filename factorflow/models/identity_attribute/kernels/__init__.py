"""Compiled loops of the identity/attribute model, and the small matrices they are made of."""
