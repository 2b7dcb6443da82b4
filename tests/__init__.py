"""Tests of Tidemark; `tests/<room>/` mirrors the rooms of the packages."""
