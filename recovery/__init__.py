"""The recovery floor: local checkpoints, restarts, integrity checks and the crash harness."""
