"""Indexes over rows in memory."""
