"""The search for the number of factors: which smaller models are proposed, judged, and take over."""
