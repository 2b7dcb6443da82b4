"""Filters and columns of DuckDB, pyarrow and polars, pushed down into scans (docs/adr/0028-pushdown.md)."""
