"""The MySQL protocol as a server speaks it: replicas and tools of MySQL and MariaDB read the binlog of a store.

Read `packets` (the wire format), `flavors` (how a server of each kind greets), `users` and `login` (proofs and their
exchange); then `served_events` and `screen` (what becomes of events on their way out), `dump` and `acks`; `gtid_sets`,
`gtids` and `mariadb_events`; `conversation` (the states of a connection after its login) and `port`, which listens.
Only `port` has sockets: elsewhere bytes go in, bytes come out.
"""
