"""The MySQL protocol as a server speaks it: replicas and tools of MySQL and MariaDB read the binlog of a store.

Read `packets` (the wire format), `flavors` (how a server of each kind greets), `users` and `login` (proofs and their
exchange). Then statements: `served` (what a store tells), `session`, `variables`, `reader`, `catalog_answers` and
`answers`. Then the binlog: `served_events`, `mariadb_events` and `screen` (what becomes of an event on its way out),
`gtid_sets` and `gtids` (numbers of transactions and their places), `snapshot` (rows, and the place from which a reader
of them follows), `dump` and `acks`. Last `conversation` (the states of a connection after its login) and `port`, which
listens. Only `port` waits for connections: elsewhere bytes go in, bytes come out.
"""
