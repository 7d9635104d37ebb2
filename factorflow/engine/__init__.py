"""The loop: plan, executors, merging, checkpoints, events. Knows models only by their contract."""
