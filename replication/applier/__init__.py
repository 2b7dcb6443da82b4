"""Epoch transactions of a binlog or relay log, applied to a store: each whole and exactly once."""
