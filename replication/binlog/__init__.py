"""MySQL's binlog, version 4: events, column types, row bodies, files (docs/internals/replication.md)."""
