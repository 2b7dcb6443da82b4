"""`db.sequence("invoice")`: numbers that are given once."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.calls import has_calls_of
from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.schema.names import check_name
from tidemark.engine.types.base import is_int, shown

TAKEN_MAX = 1 << 32  # by one call


@has_calls_of("sequence")
class Sequence:
    """A sequence of a store, as `Database.sequence` returns it. Threads and processes may share a sequence; no number
    is given twice, and of two calls in one thread the later one gets greater numbers. Numbers are not given back: a
    transaction that is rolled back, a crash or another primary leaves a gap.

    Raises: InvalidName for a name that a table could not have; its calls raise as `take` says.

    Examples:
        >>> invoice = db.sequence("invoice")
        >>> invoice.next(), invoice.next(), list(invoice.take(3))
        (1, 2, [3, 4, 5])
    """

    __slots__ = ("_take", "name")

    def __init__(self, name: str, take: Callable[[str, int], range]) -> None:
        """take: returns so many numbers of the sequence of this name. Raises: InvalidName."""
        self.name = check_name(name, "sequence")
        self._take = take

    def next(self) -> int:
        """Return the next number.

        Durable on return, with `durability="commit"`: that it is given. Raises: as `take`.

        Examples:
            >>> db.sequence("invoice").next()
            1
        """
        return self._take(self.name, 1).start

    def take(self, count: int) -> range:
        """Return the next `count` numbers, `autoincrement_step` apart.

        Durable on return, with `durability="commit"`: that they are given.

        Raises: ValueOutOfRange for a count that is not 1 to 2^32, or past the number 2^63 - 1; LockTimeout,
        MemoryExhausted, RedoOverloaded and NotPrimary, which are Retryable; StoreFailed.

        Examples:
            >>> db.sequence("invoice").take(10)
            range(1, 11)
        """
        if not is_int(count) or not 1 <= count <= TAKEN_MAX:
            raise ValueOutOfRange(f"a sequence gives 1 to {TAKEN_MAX:,} numbers at once, not {shown(count)}")
        return self._take(self.name, count)

    def __repr__(self) -> str:
        return f"<tidemark sequence {self.name}>"
