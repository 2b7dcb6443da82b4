"""Every on-disk, on-wire and in-arena structure, once."""
