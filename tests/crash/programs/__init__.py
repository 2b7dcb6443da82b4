"""Programs that the crash harness runs: each works on a store and verifies what a crash has left of it.

`python -m tests.crash.programs` runs the parts of the harness on them.
"""
