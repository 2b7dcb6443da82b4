"""Node restart: a node that was away comes back while the other nodes keep writing (docs/internals/node-group.md).

Read `messages`, then `source` (the live node) and `joiner` (the returning node). `restart` runs the joiner within a
restart and makes its state recoverable. A source reads through `log_tail` and `disk_slice`.
`verify` compares two copies.
"""
