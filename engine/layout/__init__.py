"""Every structure's bytes, once, as little-endian dtypes and bit positions with asserts beneath them."""
