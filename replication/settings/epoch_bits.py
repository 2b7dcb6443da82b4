"""Row epochs with a limited number of low bits, as `NDB$EPOCH(n)` reads them.

Rows here store the whole epoch. NDB stores the high word and n low bits: `low = min(low, 2**n - 1)`, and the largest
value reads as all ones. Reading the whole epoch in this way gives the results of NDB. Saturation errs towards "newer",
and so towards a conflict.
"""

from __future__ import annotations

from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.replication.settings.finding import Finding

BITS_DEFAULT = 6
BITS_MAX = 31
LOW_MASK = 0xFFFF_FFFF


def saturated_from(bits: int) -> int:
    """Return the smallest low word that reads as all ones."""
    if not 0 <= bits <= BITS_MAX:
        raise ValueOutOfRange(f"the number of extra GCI bits must be 0 to {BITS_MAX}, got {bits}")
    return (1 << bits) - 1


def read_epoch(epoch: int, bits: int) -> int:
    """Return the epoch as NDB would read it back."""
    return epoch | LOW_MASK if epoch & LOW_MASK >= saturated_from(bits) else epoch


def bits_needed(gcp_interval_ms: int, epoch_interval_ms: int) -> int:
    """Return ceil(log2(epochs in an interval of global checkpoints)): 2000 ms and 100 ms need 5 bits."""
    epochs = -(-gcp_interval_ms // epoch_interval_ms)
    return max(epochs - 1, 0).bit_length()


def sizing_warning(bits: int, gcp_interval_ms: int, epoch_interval_ms: int) -> Finding | None:
    """Return a warning if there are too few bits; None if there are enough."""
    needed = bits_needed(gcp_interval_ms, epoch_interval_ms)
    if bits >= needed:
        return None
    if bits == 0:
        text = "low epoch resolution: with 0 extra Gci bits a row is in conflict until the next GCI is confirmed"
        return Finding("low epoch resolution", f"{text}; give {needed} or more")
    text = (
        f"{bits} extra Gci bits tell {(1 << bits) - 1} epochs of a GCI apart, but {gcp_interval_ms} ms at"
        f" {epoch_interval_ms} ms make more: expect false conflicts, or give {needed} or more"
    )
    return Finding("too few extra Gci bits", text)
