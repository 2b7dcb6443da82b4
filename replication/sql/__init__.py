"""Schema changes as SQL text: what travels between sites, what MariaDB executes, and what we read back."""
