"""Starts of fits: principal components, an earlier fit, several starts; and the begin of the sparse stage."""
