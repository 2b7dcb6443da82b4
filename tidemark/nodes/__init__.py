"""A node of a group in this process: `node_group.py`, the channel of its group (`node_channel.py`), the arbitrator."""
