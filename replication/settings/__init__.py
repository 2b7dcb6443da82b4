"""Settings of a table's replication: pure functions over rows of `mysql.ndb_replication`, definitions and options."""
