"""The REDO log: records, groups, group commit, reading and following; files whose records enter it by reference.

Read `redo_layout` (a record), `group_layout` (a sealed group), `redo` (writing and syncing), `reader`. When
`RedoLog.wait` returns, the group is durable.
"""
