"""Long tables: a formula, a source of any size, levels, equal rows merged."""
