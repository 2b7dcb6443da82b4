"""Whether two copies hold the same rows: digests, ranges of them, and what differs (docs/verify.md)."""
