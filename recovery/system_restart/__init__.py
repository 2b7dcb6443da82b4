"""System restart: load, replay, make the log firm."""
