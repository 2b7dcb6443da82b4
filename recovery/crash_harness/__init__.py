"""Crash harness."""
