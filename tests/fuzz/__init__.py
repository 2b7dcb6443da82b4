"""Every reader of bytes from outside, given bytes that no proper writer produces (docs/tests.md, "Fuzzing")."""
