"""YCSB A to F and TATP against SQLite, LMDB, RocksDB and Redis: `python -m bench.compare`."""
