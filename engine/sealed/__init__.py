"""The seal of every unit on disk and in messages: the header of a sealed unit, checksums, the keyed hash of memory.

Read `sealed_layout` first. A unit whose seal does not match is damage and is never used.
"""
