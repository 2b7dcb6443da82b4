"""Calls of one row in one kernel call: compared with the general path, counted, and with their references."""
