"""Synchronous replicas inside a site: views, votes and leases as state machines (docs/internals/node-group.md).

Read `view.py` and `messages.py`, then the machines: `votes.py`, `liveness.py`, `primacy.py`, `machine.py`,
`election.py`, `views.py`. `stream.py` and `store_thread.py` connect the machine with the store, `carrier.py` carries
the messages, and `life.py` and `node.py` assemble a node.
"""
