"""Backups: written while transactions run, incremental by row epoch, restored into a new store (docs/backup.md).

Backups: `writer` writes one of an open store, `rows_file` and `manifest` are its files, `storage` opens places,
`retention` and `verify` look after them. The log: `archive` copies it, while the store is open, into `segments`. A
restore: `plan`, then `restore`, which has the tasks of `planner` (`split`, `fragment`) carried out by threads,
`workers` or other machines. `native` restores tables with disk columns; `later_changes` and `whole` apply
another log.
"""
