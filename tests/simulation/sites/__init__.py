"""Sites that replicate, simulated: real stores over disks in memory, links that lose, double, delay and cut frames,
crashes at any call of a disk; one thread, virtual time, everything drawn from one seed.

    python -m tests.simulation.sites --seeds 1:200

A seed draws a function, a topology, options and faults (`plan.py`); `world.py` lets the sites work, then ends all
faults and waits until nothing moves any more; `promises.py` holds what is left, and what was seen on the way, against
what docs/internals/replication.md promises. The same seed gives the same run and the same digest.
"""
