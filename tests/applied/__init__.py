"""Changes of another site applied in batches."""
