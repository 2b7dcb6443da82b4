"""A table in memory and its fragments: creation, drop, versions of its columns."""
