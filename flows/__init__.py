"""Prefect flows, which launch, schedule and retry runs, and what recurring runs keep."""
