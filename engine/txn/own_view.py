"""Transactions that read by a view of their own, opened when they are made (`isolation="snapshot"`).

Every call sees what was committed then, and the transaction's own changes. A change or a lock of a row that another
transaction has changed since ends with WriteConflict: of two transactions that change a row, the first one that commits
wins. Kernels compare the instant of a row with the view (X_VIEW) when they lock the row, so that nothing comes between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.memory.arena_layout import X_VIEW
from tidemark.engine.txn.transaction import REDO_WORDS, Transaction

if TYPE_CHECKING:
    from tidemark.engine.txn.resources import Resources
    from tidemark.engine.txn.views import KeptView


class OwnView(Transaction):
    """Mixed into a transaction; the class has a slot `view`."""

    __slots__ = ()

    view: KeptView

    def __init__(self, store: Resources) -> None:
        """Open the view. Raises: as `Views.open`."""
        super().__init__(store)
        self.view = view = store.views.keep()  # type: ignore[misc]  # mypy does not see the slot of the class
        # Kernels that read one row find the view in the second word. The store keeps arrays of one word for others.
        self.shown = np.array([self.seen, view.view], dtype=np.int64)

    def begin(self, tail_word: int = 0, redo_words: int = REDO_WORDS, is_applied: bool = False) -> None:
        super().begin(tail_word, redo_words, is_applied)
        self.mem[self.desc + X_VIEW] = self.view.view

    def commit(self, wait: bool | None = None) -> None:
        with _Ending(self):
            super().commit(wait)

    def _roll_back_whole(self) -> None:
        with _Ending(self):
            super()._roll_back_whole()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with _Ending(self):
            super().__exit__(kind, error, trace)


class _Ending:
    """A call that may end a transaction: its word is given back without the view, which is closed."""

    def __init__(self, txn: OwnView) -> None:
        self._txn = txn

    def __enter__(self) -> None:
        self._txn.shown = self._txn.shown[:1]

    def __exit__(self, *error: object) -> None:
        txn = self._txn
        if txn.is_ended:
            txn.view.close()
        else:
            txn.shown = np.array([txn.seen, txn.view.view], dtype=np.int64)
