"""A store of another process: the client's calls, and their execution in that process (docs/clients.md)."""
