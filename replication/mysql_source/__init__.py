"""The MySQL protocol as a server speaks it: replicas and tools of MySQL and MariaDB read the binlog of a store.

Read `packets` (the wire format), `flavors` (how a server of each kind greets), `users` and `login` (proofs and their
exchange). Then statements: `served` (what a store tells), `session`, `variables`, `reader`, `catalog_answers` and
`answers`. Then the binlog: `served_events` and `screen` (what becomes of events on their way out), `dump` and `acks`;
`gtid_sets`, `gtids`, `mariadb_events` and `snapshot`. Last `conversation` (the states of a connection after its login)
and `port`, which listens. Only `port` waits for connections: elsewhere bytes go in, bytes come out.
"""
