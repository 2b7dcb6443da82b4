"""A table in memory and its fragments: made, dropped, and versions of its columns."""
