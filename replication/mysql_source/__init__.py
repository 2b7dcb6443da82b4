"""The MySQL protocol as a server speaks it: replicas and tools of MySQL and MariaDB read the binlog of a store.

Read `packets` (the wire format), `flavors` (how a server of each kind greets), `users` and `login` (proofs and their
exchange). Then statements: `served` (what a store tells), `session`, `variables`, `reader`, `catalog_answers` and
`answers`. Then the binlog: `served_events` and `mariadb_events` (what becomes of an event on its way out), `gtid_sets`
and `gtids` (numbers of transactions and their places), and `snapshot` (rows, and the place from which a reader of them
follows). Nothing here has a socket: bytes go in, bytes come out.
"""
