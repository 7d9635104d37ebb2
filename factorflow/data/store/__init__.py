"""The store on disk: layout, chunks, opening, writing, verifying."""
