"""Query results as a MySQL server sends them: packets, and the values of a row of text. The store keeps none of these
bytes.
"""

from __future__ import annotations

PACKET_HEADER_BYTES = 4  # three of length, one of sequence
PACKET_BYTES_MAX = (1 << 24) - 1  # a packet of this length continues in the next one
# First bytes of packets other than rows.
PACKET_ERROR = 0xFF
PACKET_END = 0xFE
PACKET_END_BYTES_MAX = 9  # a row that begins with the same byte is longer

# First bytes of values; smaller ones are the length itself.
VALUE_NULL = 251
LENGTH_2 = 252
LENGTH_3 = 253
LENGTH_8 = 254
