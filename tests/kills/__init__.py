"""Processes that are killed, again and again, and judges of what is left: sites, and nodes of a group."""
