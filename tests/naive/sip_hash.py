"""Naive twin of the keyed hash: SipHash-1-3 over any bytes, with the key halves of CPython's own hash of bytes."""

from __future__ import annotations

LOW64 = (1 << 64) - 1
SECOND_HALF = 0x5851F42D4C957F2D


def _left(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & LOW64


def siphash13(data: bytes, first_half: int, second_half: int) -> int:
    """The hash, unsigned."""
    v = [
        first_half ^ 0x736F6D6570736575,
        second_half ^ 0x646F72616E646F6D,
        first_half ^ 0x6C7967656E657261,
        second_half ^ 0x7465646279746573,
    ]

    def mix() -> None:
        v[0] = v[0] + v[1] & LOW64
        v[1] = _left(v[1], 13) ^ v[0]
        v[0] = _left(v[0], 32)
        v[2] = v[2] + v[3] & LOW64
        v[3] = _left(v[3], 16) ^ v[2]
        v[0] = v[0] + v[3] & LOW64
        v[3] = _left(v[3], 21) ^ v[0]
        v[2] = v[2] + v[1] & LOW64
        v[1] = _left(v[1], 17) ^ v[2]
        v[2] = _left(v[2], 32)

    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        mix()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        mix()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def keyed_hash(data: bytes, seed: int) -> int:
    """Hash of the bytes of some words under the seed of a store, signed or unsigned."""
    return siphash13(data, seed & LOW64, _left(seed & LOW64, 32) ^ SECOND_HALF)
