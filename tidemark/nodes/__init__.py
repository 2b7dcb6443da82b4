"""A node of a group in this process: `node_group.py`, the channel of its group (`node_channel.py`), the arbitrator."""

FOLDER = "node"  # in the store's directory: the node's durable record, its lock, and the socket that tells its status
