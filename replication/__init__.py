"""The replication floor: between sites (binlog, applier, conflicts) and inside a site (node group)."""
