"""Conformance cases of replication, and the runner: `python -m tests.conformance PATH...`"""
