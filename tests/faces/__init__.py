"""Every public call on every face, in every storage, with every kind of argument (`tidemark/calls.py`)."""
