"""Data structures in main memory: the arena, its pages and blocks."""
