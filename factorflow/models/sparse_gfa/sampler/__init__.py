"""Draws of the model of a fit: Gibbs sweeps, moves between and across factors, priors that are learned."""
