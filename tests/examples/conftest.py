"""Fixtures: see given_posterior.py."""

from given_posterior import given, given_family, make_given

__all__ = ["given", "given_family", "make_given"]
