"""Lives of a store whose threads take turns by a seed. Read `lives.py` first, then `life.py` and `turns.py`."""
