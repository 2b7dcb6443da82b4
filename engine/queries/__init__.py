"""The rows that a condition accepts: how they are found, read as columns, added up, and changed.

Read `conditions`, `index_choice` and `program_scans`, then `conditional_changes`. Rows are read and changed by
`engine/access`.
"""
