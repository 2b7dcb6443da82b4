"""A simulation of sites that replicate: real stores over disks in memory, links that lose, double, delay and cut
frames, crashes at any call of a disk; one thread, virtual time, everything drawn from one seed.

    python -m tests.simulation.sites --seeds 1:200

A seed draws a function, a topology, options and faults (`plan.py`). `world.py` lets the sites work, then ends all
faults and waits until nothing changes any more. `promises.py` checks what is left, and what happened on the way,
against the promises of docs/internals/replication.md. The same seed gives the same run and the same digest.
"""
