"""Frames of a link: a header with a seal, then the payload.

Everything is little-endian. The seal is an HMAC-SHA256, truncated to 16 bytes, over the header fields before the seal
and the payload. Each direction of a session has its own key. During the handshake the seal is zero.
"""

from __future__ import annotations

import numpy as np

FRAME_MAGIC = 0x314B4D54  # "TMK1"
FRAME_SEAL_BYTES = 16
FRAME_HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("kind", "<u2"),
        ("reserved", "<u2"),  # 0
        ("payload_bytes", "<u4"),
        ("reserved_2", "<u4"),  # 0
        ("sequence", "<u8"),  # 0, 1, 2 ... in each direction, without a gap
        ("seal", "u1", (FRAME_SEAL_BYTES,)),
    ]
)
FRAME_HEADER_BYTES = FRAME_HEADER.itemsize

# Frames of the handshake, not sealed.
FRAME_HELLO = 1  # replica: its identity, its versions, its nonce
FRAME_CHALLENGE = 2  # source: its identity, the version, its nonce
FRAME_PROOF = 3  # replica: its proof
FRAME_REFUSE = 4  # either: why it refuses the link
# Frames of a session, sealed.
FRAME_WELCOME = 16  # source: the proof is valid; its seal is the source's own proof
FRAME_START = 17  # replica: where to begin
FRAME_EVENTS = 18  # source: bytes of binlog events of one file
FRAME_HEARTBEAT = 19  # source: sign of life, and the end of its binlog
FRAME_ACKNOWLEDGE = 20  # replica: bytes taken so far, newest durable and newest applied epoch
FRAME_ERROR = 21  # either: the error that ends the link
FRAME_BYE = 22  # either: it ends the link
FRAME_SETTINGS = 23  # source: its conflict functions, before the first events
FRAME_COPY = 24  # replica: the next piece of a first copy, instead of FRAME_START
FRAME_COPIED = 25  # source: that piece
FRAME_CALL = 26  # client: a piece of a call; its first byte is 1 for the last one
FRAME_ANSWER = 27  # server: a piece of the answer, likewise
FRAME_NODE_MESSAGE = 28  # node of a group: a message
FRAME_NODE_PIECE = 29  # node of a group: a piece of a long message; its first byte is 1 for the last one

HANDSHAKE_KINDS = range(FRAME_HELLO, FRAME_REFUSE + 1)
SESSION_KINDS = range(FRAME_WELCOME, FRAME_NODE_PIECE + 1)

HANDSHAKE_BYTES_MAX = 4_096
PAYLOAD_BYTES_MAX = 16 << 20

assert FRAME_HEADER_BYTES == 40
assert FRAME_HEADER.fields is not None and FRAME_HEADER.fields["seal"][1] == 24
