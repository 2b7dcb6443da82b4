"""Every structure on disk, on the wire and in the arena, once."""
