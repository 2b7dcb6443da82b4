"""Crash harness: runs a program under crash states, failing calls, kills and power losses."""
