"""Replication between sites."""
