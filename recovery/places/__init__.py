"""Places outside the store: what a path or a URI names, and its files (docs/backup.md, 11).

`names` has one form for each place, for messages too. `storage` opens its files, on a local disk or by pyarrow.
"""
