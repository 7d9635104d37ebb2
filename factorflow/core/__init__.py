"""What all packages stand on: views, blocks and metadata, trees of arrays, optional packages."""
