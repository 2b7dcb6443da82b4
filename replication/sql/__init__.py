"""Schema changes as SQL text: sent between sites, executed by MariaDB, and read back here."""
