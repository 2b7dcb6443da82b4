"""Replication between sites as users call it.

Read `channel.py` first, then `channel_links.py` (the arguments of a channel) and `serving.py`. `mysql_serving.py`,
`failover.py` and `mysql_ingest.py` stand alone.
"""
