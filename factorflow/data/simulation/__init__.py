"""Simulated datasets of any size."""
