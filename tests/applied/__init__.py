"""Changes of another site that are applied in batches."""
