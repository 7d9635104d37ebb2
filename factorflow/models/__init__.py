"""One file per family: its equations, and nothing of engines, files or clusters."""
