"""Backups: written while transactions run, incremental by row epoch, restored into a new store (docs/backup.md).

Backups: `writer` writes one of an open store, `rows_file`, `level_file` and `manifest` are its files, `chain` reads the
levels of a fragment, `retention` and `verify` look after them. The log: `archive` copies it, while the store is open,
into `segments`. A restore: `plan`, then `restore`, which runs the tasks of `planner` (`split`, `fragment`) in threads,
in `workers` or on other machines. `native` restores tables with disk columns; `later_changes` and `whole` apply changes
of another log than the archive.
"""
