"""Prefect flows, which launch, schedule and retry runs."""
