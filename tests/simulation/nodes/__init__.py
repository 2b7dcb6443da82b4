"""A simulation of the nodes of one site: their machines over links, disks and clocks that fail; one thread, virtual
time, everything drawn from one seed.

    python -m tests.simulation.nodes --seeds 1:1001

A seed draws nodes, an arbitrator or none, clocks and faults (`plan.py`). `world.py` lets clients commit and read
through all nodes while links, disks, processes and whole sites fail, ends all faults, and waits for a group that takes
commits. What docs/internals/node-group.md says of views is checked at each step (`promises.py`).
"""
