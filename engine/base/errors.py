"""Every exception class, and nothing else; for users it is `tidemark.errors`, which tracebacks and pickles name.

A class answers two questions: did anything change, and what should the caller do? A message is one line: what happened,
then what to do. Evidence is in fields.
"""

from __future__ import annotations


class Error(Exception):
    """Base of everything Tidemark raises; keyword arguments become evidence fields.

    Examples:
        >>> try:
        ...     db["item"].insert((1, "pen", 10))
        ... except tm.Error as error:
        ...     type(error).__name__, error.retryable, error.table, error.key
        ('DuplicateKey', False, 'main.item', 1)
    """

    retryable = False

    def __init__(self, message: str, **evidence: object) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence

    def __getattr__(self, name: str) -> object:
        # Reached only for names that are not attributes: evidence fields such as `.file`, `.row`.
        evidence = self.__dict__.get("evidence", {})
        if name in evidence:
            return evidence[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.evidence))


def _rebuild(cls: type[Error], message: str, evidence: dict[str, object]) -> Error:
    return cls(message, **evidence)


# --- nothing happened; fix the call -------------------------------------------------------------
class Rejected(Error):
    """Nothing happened; the call must be changed before it can succeed."""


class InvalidName(Rejected):
    """A database, table, column or index name that is not allowed."""


class SchemaInvalid(Rejected):
    """A table definition or option that is invalid."""


class NoSuchTable(Rejected):
    """The table does not exist."""


class NoSuchColumn(Rejected):
    """The column does not exist in the table."""


class NoSuchPartition(Rejected):
    """The table has no partition of this name."""


class NoPartition(Rejected):
    """No partition of the table takes the row (`values`: the values of its partition columns)."""


class TableExists(Rejected):
    """A table of this name exists."""


class IndexExists(Rejected):
    """The table has an index of this name, or one is being built."""


class NoSuchIndex(Rejected):
    """The table has no index of this name."""


class NoSuchTablespace(Rejected):
    """The tablespace does not exist."""


class TablespaceExists(Rejected):
    """A tablespace of this name exists."""


class TablespaceInUse(Rejected):
    """A tablespace that holds tables cannot be dropped."""


class DuplicateKey(Rejected):
    """A row with this key exists, or the key appears twice in a batch (`row` says where); `index`: the unique index."""


class RowNotFound(Rejected):
    """No row has this key."""


class TypeMismatch(Rejected):
    """A value has the wrong Python or Arrow type for its column."""


class ValueOutOfRange(Rejected):
    """A value is outside the range, or longer than the length, of its column."""


class NotNullViolation(Rejected):
    """None was given for a column that is not nullable, or a column without default was left out."""


class CheckFailed(Rejected):
    """A `check` of the table is false for a row, or cannot be evaluated: `key`, and `values` of the columns that it
    reads; `row`: the position in a batch.
    """


class RowTooLarge(Rejected):
    """The row exceeds a size limit."""


class TransactionTooLarge(Rejected):
    """The transaction exceeds `transaction_limit`."""


class LimitExceeded(Rejected):
    """A limit of `engine/base/limits.py` is exceeded, or an option is too small for what is opened or restored."""


class ReadOnly(Rejected):
    """A write on a read-only store or transaction."""


class WrongThread(Rejected):
    """A transaction was used by a thread that does not own it."""


class SnapshotClosed(Rejected):
    """The snapshot was closed, or its store was; open another one."""


class TransactionEnded(Rejected):
    """The transaction has committed or rolled back already."""


class TransactionKilled(TransactionEnded):
    """The transaction was rolled back from outside: by `kill`, or because its client made no call for
    `idle_transaction_ms`. Nothing of it was committed (`txid`).
    """


class ProgramInvalid(Rejected):
    """The verifier rejects an interpreted program, or an expression cannot be compiled into one."""


class ProgramFailed(Rejected):
    """An interpreted program failed on a row: `key` is the key of the row, `code` is one of PE_…"""


class LoadRefused(Rejected):
    """The table refuses rows of a load (`examples`), or was changed after the load was planned; nothing was loaded."""


class LoadEnded(Rejected):
    """The load was published or aborted; no more can be written for it."""


class Unsupported(Rejected):
    """A feature this version of the store does not have."""


# --- rolled back whole; run it again ------------------------------------------------------------
class Retryable(Error):
    """This transaction was rolled back whole; running it again may succeed. `Database.run` does that."""

    retryable = True


class Deadlock(Retryable):
    """The transaction was chosen as the victim of a deadlock. Fields: as of LockTimeout."""


class NotPrimary(Retryable):
    """Another node of the group executes transactions; `primary` is its number, if known."""


class PrimaryLost(Retryable):
    """The process that executed the transaction was lost before it committed."""


class LockTimeout(Retryable):
    """A row lock was not granted within `lock_timeout_ms`: `table`, `key`, `holder` (the txid of a transaction that has
    the lock) and `held_ms`, the time since its first call that locks rows.
    """


class WriteConflict(Retryable):
    """Another transaction has changed a row since this one began, with `isolation="snapshot"`: `table`, and `key` if it
    is known.
    """


class RedoOverloaded(Retryable):
    """The REDO log is full and no local checkpoint freed it within `lock_timeout_ms`."""


class BinlogOverloaded(Retryable):
    """The REDO log is full of epochs that the binlog did not take within `lock_timeout_ms`."""


class StorageFull(Retryable):
    """The disk, a quota or a file-size limit is exhausted."""


class MemoryExhausted(Retryable):
    """`data_memory` is exhausted, or the process has no memory left."""


class CallMemoryExhausted(Retryable):
    """The calls of all clients of a server would together take more memory than the server allows them."""


class TooManyFiles(Retryable):
    """No file descriptor is left."""


class CheckpointMemoryExhausted(Retryable):
    """Copies for the running local checkpoint did not fit into `checkpoint_memory` in time."""


class SnapshotTooOld(Retryable):
    """The versions a snapshot needs are gone."""


# --- unknown ------------------------------------------------------------------------------------
class OutcomeUnknown(Error):
    """The commit was handed to the log; ask `db.outcome(txid)` after reopening."""


class CommitInterrupted(OutcomeUnknown, KeyboardInterrupt):
    """Ctrl-C came while the commit was on its way to the disk; a KeyboardInterrupt with `txid`."""


class CommitOnFailedStore(OutcomeUnknown):
    """The store failed while the commit was on its way to the disk."""


class CommitUnanswered(OutcomeUnknown):
    """The link to the store's process broke while the commit was on its way, and asking for its outcome timed out."""


# --- the handle is dead -------------------------------------------------------------------------
class StoreFailed(Error):
    """The store is dead until it is closed and opened again."""


class IoFailed(StoreFailed):
    """A read or write failed."""


class SyncFailed(StoreFailed):
    """A sync failed; the state of the disk is unknown until a restart has read it."""


class InvariantBroken(StoreFailed):
    """An internal invariant does not hold; the store stopped before doing harm."""


class StoreClosed(StoreFailed):
    """The store is closed."""


class ForkedHandle(StoreFailed):
    """The store was opened before a fork; open it again in the child."""


# --- data on disk cannot be accepted ------------------------------------------------------------
class Damaged(Error):
    """Data on disk cannot be accepted; nothing was changed."""


class RedoDamaged(Damaged):
    """A REDO group that was durable is damaged."""


class SpoolDamaged(Damaged):
    """The file of a transaction larger than memory, which a durable REDO group refers to, is damaged or missing."""


class UndoDamaged(Damaged):
    """An UNDO group that is needed is damaged."""


class LcpDamaged(Damaged):
    """A fragment has no intact local checkpoint from which the kept REDO log can roll it forward."""


class CatalogDamaged(Damaged):
    """No copy of the table definitions can be read."""


class SysfileDamaged(Damaged):
    """Both copies of the sysfile are damaged."""


class ViewDamaged(Damaged):
    """Both copies of a node group's view are damaged: the votes of this node are unknown."""


class PageDamaged(Damaged):
    """A page fails its checksum, or its structure is invalid."""


class BinlogDamaged(Damaged):
    """An event of a binlog or relay file, or the index of the files, is invalid (`file`, `position`)."""


class BackupDamaged(Damaged):
    """A file of a backup or of an archive is invalid (`file`, `offset`)."""


class LoadDamaged(Damaged):
    """A file of a load is missing or contradicts its manifest (`file`, `offset`)."""


class RestoreUnfinished(Damaged):
    """A restore into this directory was interrupted; the directory holds no store."""


class FileMissing(Damaged):
    """A file the store needs is missing."""


class FileTruncated(Damaged):
    """A file is shorter than it must be."""


class ForeignFile(Damaged):
    """A file belongs to another store."""


# --- others -------------------------------------------------------------------------------------
class Incompatible(Error):
    """The store cannot be opened by this version or with these options."""


class VersionTooNew(Incompatible):
    """The store was written by a newer format version."""


class VersionTooOld(Incompatible):
    """The store was written by a format version that is no longer read."""


class Locked(Error):
    """Another process, or another handle of this process, holds the store."""


class PeerError(Error):
    """The other side of a link misbehaved."""


class FrameRejected(PeerError):
    """A frame is malformed, too long, out of order, or has a wrong seal; the link is closed."""


class PeerUnauthenticated(PeerError):
    """The other side does not know the secret."""


class PeerUnproved(PeerError):
    """The link was refused before the other side proved that it knows the secret. Any host on the path can send such a
    refusal, so it is never final.

    `claimed` names the error that the other side gave as its reason: "PeerUnauthenticated" if the secrets differ,
    "PeerVersion" if the versions do; it may be untrue.
    """


class PeerVersion(PeerError):
    """The two sides have no version of the protocol in common."""


class PeerRefused(PeerError):
    """The other side has the same server id, is the same store, is of another group, or refuses this one: a retry does
    not help.
    """


class PeerTimeout(PeerError):
    """The other side has been silent for too long."""


class EpochGap(PeerError):
    """Epochs are missing between those applied and those the source has; the replica stops."""


class PositionLost(PeerError):
    """The source no longer has the binlog from the replica's position; copy the replica again (`copy=True`)."""


def _name_for_users() -> None:
    for each in globals().values():
        if isinstance(each, type):
            each.__module__ = "tidemark.errors"


_name_for_users()
