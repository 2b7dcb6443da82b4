"""Every reader of bytes that others may have written, given bytes that nobody writes (docs/tests.md, "Fuzzing")."""
