"""The seal of every unit on disk and in messages: the header of a sealed unit, checksums, the keyed hash of memory.

Read `sealed_layout` first. A unit whose seal does not match is damage and is never used.
"""

# The hash of all layouts of FORMAT_VERSION; tests/layout/test_format.py compares it with tools/format_document.py.
FORMAT_FINGERPRINT = "70879fdc11683268ce064667e4aef1d4"
