"""Compiled loops of Poisson factors."""
