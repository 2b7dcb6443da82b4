"""Everything that runs long, in turns: `make soak MINUTES=n SEED=s`."""
