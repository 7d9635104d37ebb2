"""What a run found: building, writing and reading posteriors; prediction, scores, draws, diagnostics.

`stored.Stored` is what all of it works on; the face that users see is `factorflow.Posterior`, above.
"""
