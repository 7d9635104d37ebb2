"""Disks and object stores: locations, atomic publication, checksums. It knows no runs and no models."""
