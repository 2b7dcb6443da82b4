"""Schema changes as SQL text: sent between sites, executed by MariaDB and MySQL, and parsed here.

`statements` holds schema changes as values, `emit` turns them into SQL, and `parse` reads SQL, by way of `tokens`,
`column_reader` and `column_types`.
"""
