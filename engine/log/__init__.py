"""The REDO log: records, groups, group commit, reading and following; files whose records enter it by reference.

Read `redo_layout` (a record), `group_layout` (a sealed group), `redo` (who writes and syncs), `reader`. On return of
`RedoLog.wait` the group is durable.
"""
