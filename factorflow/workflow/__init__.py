"""Several steps in one: from files to a report, and the choice among configurations."""
