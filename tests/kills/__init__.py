"""Loops that kill processes again and again and check what is left: of sites, and of nodes of a group."""
