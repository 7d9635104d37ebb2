"""From what users have to a store: one file a format."""
