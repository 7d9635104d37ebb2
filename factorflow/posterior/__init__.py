"""What a run found: building, writing and reading posteriors; prediction, scores, draws, diagnostics.

All of it works on `stored_posterior.StoredPosterior`; users see its subclass `factorflow.Posterior`.
"""
