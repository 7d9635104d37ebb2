"""Disks and object stores: locations, atomic publication, checksums; independent of runs and models."""
