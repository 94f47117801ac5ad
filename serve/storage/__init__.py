"""Jobs (SQL) and artifacts (object store)."""
