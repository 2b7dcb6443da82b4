"""What each field on disk means, for `docs/format.md`; a field without a line here fails the check.

Positions of fields inside words come from the constants of the code, so the document and the fingerprint of the format
follow them.
"""

from __future__ import annotations

from tidemark.engine.base import ids
from tidemark.engine.base import words_layout as words
from tidemark.engine.disk import cache_layout as disk_arena
from tidemark.engine.disk import disk_layout as disk
from tidemark.engine.log import group_layout as log
from tidemark.engine.log import load_layout as load
from tidemark.engine.log import redo_layout as redo
from tidemark.engine.log import spool_layout as spool
from tidemark.engine.memory import arena_layout as arena
from tidemark.engine.rows import backup_layout as backup
from tidemark.engine.rows import lcp_layout as lcp
from tidemark.engine.schema import catalog_layout as catalog
from tidemark.engine.schema import definition as schema
from tidemark.engine.schema import row_layout as row
from tidemark.engine.sealed import sealed_layout as sealed
from tidemark.recovery.system_restart import sysfile_layout as sysfile
from tidemark.replication.node_group import view_layout as view

NOTES: dict[str, dict[str, str]] = {
    "seal": {
        "checksum": "XXH3-64 over every byte of the unit after this field",
        "kind": "kind of unit",
        "version": "format version that wrote it",
        "words": "8-byte words of the whole unit",
        "store_low": "store UUID, first half",
        "store_high": "store UUID, second half",
        "incarnation": "raised each time the store is opened for writing",
    },
    "redo group": {
        "sequence": "1, 2, 3 … without a gap in the life of the store",
        "lsn": "byte position of the group in the endless log",
        "lap": "times the ring had been filled before",
        "transactions": "transactions in the group",
        "epoch": "epoch of all of them",
        "wall_us": "when it was sealed, µs since 1970 UTC; never decides an order",
        "next_txid": "transaction ids from this one on are in later groups",
        "records_words": "words of records after this header; the rest up to 4 KiB is zero",
        "unsynced": "number of groups directly before it in the same write, not known to be durable when it was sealed",
        "reserved_1": "0",
        "reserved_2": "0",
        "reserved_3": "0",
    },
    "sysfile": {
        "generation": "the newer intact copy wins",
        "gci": "GCI when it was written",
        "closed_epoch": "newest epoch known to be closed and durable",
        "durable_lsn": "a log that ends before this is damaged",
        "durable_sequence": "sequence of the last group before `durable_lsn`",
        "reach_lsn": "no group was ever written that ends after this LSN; 0: unknown",
        "file_bytes": "bytes of one REDO file",
        "file_count": "REDO files",
        "hash_seed": "seed of the index hash",
        "next_table_id": "a floor for the next table number",
        "next_lcp_id": "a floor for the next local checkpoint number",
        "created_us": "when the store was made, µs since 1970 UTC",
        "filtered_epoch": "UNDO records of epochs up to this may have been left out; 0: none was",
        "undo_file_bytes": "bytes of one UNDO file",
        "undo_file_count": "UNDO files; 0: no UNDO log yet",
        "undo_void_sequence": "UNDO groups from here with `next_lsn` ≤ `undo_void_lsn` are void; 0: none",
        "undo_void_lsn": "see above; also a floor for new LSNs of the UNDO log",
        "timeline": "number of restarts to an earlier epoch; epochs of different timelines are not comparable",
        "seam_lsn": "a restart that begins before this LSN reads the log only up to here; 0: no rows were copied",
        "seam_sequence": "sequence of the first group after the seam; a lower one at `seam_lsn` is before the seam",
        "unmade_count": "the last REDO files, which do not count as made yet; 0: the ring has all its files",
        "reserved": "0",
    },
    "spool block": {
        "txid": "the transaction; of a load file the number of its job",
        "number": "number of the block in its file, from 0",
        "start_word": "word of the transaction's buffer where the first record of the block begins",
        "records_words": "words of records after this header; the rest up to 4 KiB is zero",
        "reserved": "0",
    },
    "load manifest": {
        "job": "number of the load",
        "body_bytes": "bytes of the JSON after this header; the rest is zero",
        "reserved": "0",
    },
    "backup unit": {
        "backup": "number of the backup; of a level file, that whose folders it was made in",
        "epoch": "the rows are those at the end of this epoch",
        "body_bytes": "bytes of the JSON after this header",
        "reserved": "0",
    },
    "archive segment": {
        "timeline": "timeline of the store whose log this is",
        "start_lsn": "LSN of its first group",
        "end_lsn": "LSN after its last group",
        "start_sequence": "sequence of its first group",
        "groups": "groups in the file",
        "first_epoch": "epoch of its first group",
        "last_epoch": "epoch of its last group; closed when the segment was written",
        "first_wall_us": "when its first group was sealed, microseconds since 1970",
        "last_wall_us": "when its last group was sealed",
        "reserved": "0",
    },
    "view": {
        "generation": "the newer intact copy wins; after each write both have the same",
        "node": "number of the node that keeps it; 0: the arbitrator",
        "number": "number of the newest view it knows; 0: none was made yet",
        "primary": "node that orders the commits of the view",
        "count": "members of the view",
        "is_member": "1: the node is in the view, and its log has everything that a member must have",
        "epoch": "X: the last epoch that the group has completed with this node",
        "joins": "number of the view that this node may join, because its log has all of the view before; 0: none",
        "promised_round": "for the successor view: round of the lowest ballot that still gets a vote",
        "promised_node": "node of that ballot; both 0: no promise",
        "accepted_round": "round of the ballot accepted for the successor view",
        "accepted_node": "node of that ballot; both 0: none",
        "accepted_primary": "primary of that successor; its number is one above the view's",
        "accepted_count": "members of that successor",
        "members": "node numbers of the members, rising; the rest is 0",
        "accepted_members": "node numbers of the members of that successor",
        "addresses": f"addresses of the members, ASCII, {view.VIEW_ADDRESS_BYTES} bytes each, filled up with zeros",
        "accepted_addresses": "addresses of the members of that successor",
        "arbitrator": "address of the arbitrator; zeros: the group has none",
        "sequence": "sequence of the last group of epoch X",
        "reserved": "0",
    },
    "undo group": {
        "sequence": "1, 2, 3 … without a gap in the life of the UNDO log",
        "position": "byte position of the group in the endless log of groups",
        "lap": "times the ring had been filled before",
        "first_lsn": "LSN after the records of the group before",
        "next_lsn": "each record from `first_lsn` up to this LSN is in the group, was filtered, or was lost in a crash",
        "records_words": "words of records after this header; the rest up to 4 KiB is zero",
        "records": "records in it",
        "filtered": "records that were left out of it",
        "previous_position": "position of the previous group; of the first group, its own",
        "filtered_epoch": "newest epoch of the records left out since the log was opened; 0: none was",
        "reserved": "0",
    },
    "lcp block": {
        "lcp_id": "local checkpoint",
        "table_id": "table; 0 in the copies file",
        "fragment": "fragment; 2³²−1 in the copies file",
        "number": "number of the block in its file, from 0",
        "is_last": "1 in the file's last block",
        "entries": "row entries in the block (in the copies file: buffers of entries)",
        "entry_words": "words of entries after this header",
        "total_entries": "as `entries`, over the file so far",
        "reserved": "0",
    },
    "lcp control": {
        "lcp_id": "local checkpoint",
        "epoch": "its content is the state at the end of this epoch",
        "start_lsn": "replay starts here",
        "start_sequence": "sequence of the group at `start_lsn`",
        "next_table_id": "next table number",
        "body_bytes": "bytes of JSON after this header: tables, fragments, copies",
        "reserved": "0",
    },
    "disk page": {
        "lsn": "UNDO LSN of its newest change; 0: never changed",
        "page": "(data file << 32) + page in the file",
        "owner": "(fragment << 32) + table",
        "free_words": "words that are neither header, pieces nor slot directory, contiguous or not",
        "top": "first word after the pieces",
        "entries": "words of the slot directory at the page's end; slot 0 is the last word of the page",
        "free_entry": "first free slot + 1, 0 none",
        "used": "slots with a piece",
        "reserved": "0",
    },
    "double-write file": {
        "batch": "number of the batch since the store was opened",
        "pages": "copies after this header",
        "page_bytes": "bytes of each",
        "numbers": "(data file << 32) + page in the file, of each copy in order",
        "checksums": "low half of each copy's checksum; a copy with another checksum is of an older batch",
        "reserved": "0",
    },
    "catalog value": {
        "table_id": "table number, the key in LMDB too",
        "body_bytes": "bytes of JSON after this header",
        "reserved": "0",
    },
    "catalog seal": {
        "lsn": "the catalog reflects the log up to this LSN",
        "file_bytes": "size of data.mdb",
        "file_digest": "XXH3-64 over data.mdb",
        "tables": "tables in it",
        "tables_digest": "digest over all values in order of table number",
        "reserved": "0",
    },
    "data file": {
        "file_id": "number of the data file, as in its name",
        "tablespace_id": "tablespace",
        "page_bytes": "bytes of a page; this one is as large, zero after the header",
        "extent_pages": "pages of an extent; the extents begin after this page",
        "created_us": "when the file was made, µs since 1970 UTC",
        "reserved": "0",
    },
    "extents": {
        "lcp_id": "local checkpoint",
        "number": "number of the block in its file, from 0",
        "is_last": "1 in the file's last block",
        "extents": "extent headers in the block",
        "used_words": "words of extent headers after this header",
        "reserved": "0",
    },
    "binlog event header": {
        "timestamp_s": "time of the event, seconds since 1970",
        "type": "type of event",
        "server_id": "server that made the change first",
        "event_bytes": "bytes of the event, this header and the CRC32 after it included",
        "end_position": "position after the event, modulo 2³²",
        "flags": "1: file in use (format description only); 0x40: relay log; 0x80: ignorable",
    },
    "binlog format description": {
        "binlog_version": "4",
        "server_version": "text, zero-padded",
        "created_s": "when the writer was opened; 0 in files that a rotation began",
        "header_bytes": "19; then the fixed length of each event type and the checksum algorithm (1)",
    },
    "binlog query": {
        "thread_id": "0",
        "duration_s": "0",
        "database_bytes": "bytes of the database's name, without its zero byte",
        "error_code": "0",
        "status_bytes": "bytes of status variables; they, the name and the statement follow",
    },
    "binlog gtid": {
        "gtid_flags": "0",
        "source": "UUID of the history; zero: anonymous",
        "number": "number of this transaction in the history; 0: anonymous",
        "clock": "2",
        "last_committed": "number of the previous transaction in the file",
        "sequence_number": "number of this transaction in the file, from 1; then 7 bytes of commit time, µs since 1970",
    },
    "binlog gtid of MariaDB": {
        "number": "read only: transaction of its domain",
        "domain": "stream of transactions",
        "gtid_flags": "1: a single statement without an end event; 0x40, 0x80: distributed transactions",
    },
    "binlog previous gtids": {
        "servers": "1; 0 ends the event",
        "source": "UUID of the history",
        "intervals": "1",
        "first": "1",
        "numbers_end": "number of the first transaction after this event",
    },
    "binlog table": {
        "table_low": "low part of the table number in this statement, (table << 16) + version",
        "table_high": "high part of the same",
        "table_flags": "TABLE_MAP: 1; rows: 1 if the statement ends here",
    },
    "binlog rotate": {"position": "4; the next file's name follows"},
    "binlog xid": {"xid": "not written by the store"},
    "binlog incident": {"number": "1: events were lost", "message_bytes": "bytes of the text that follows"},
    "binlog extra row info": {
        "tag": "0: of NDB",
        "block_bytes": "bytes of the block after the tag, this one included",
        "format": "0",
        "info_flags": "1: u64 transaction id; 2: then u16 conflict flags (1 reflect, 2 refresh, 4 read)",
    },
}


def _bits(mask: int, shift: int = 0) -> str:
    """Return the bits of a word that a field occupies."""
    return f"{shift}–{shift + mask.bit_length() - 1}"


def _rest(shift: int) -> str:
    """Return the bits of a word from `shift` on; the sign bit stays clear."""
    return f"{shift}–62"


def _disk_bit_fields() -> dict[str, list[tuple[int, str, str]]]:
    slot = disk.ENTRY_WORDS_SHIFT
    return {
        "slot": [
            (0, _bits(disk.ENTRY_MASK), "first word of the piece; of a free slot: next free slot + 1, 0 none"),
            (0, _bits(disk.ENTRY_MASK, slot), "words of the piece"),
            (0, _bits(1, disk.ENTRY_FREE.bit_length() - 1), "1 if the slot is free"),
        ],
        "undo record": [
            (0, _bits(disk.UNDO_KIND_MASK), "kind"),
            (0, _bits((1 << 32) - 1, disk.UNDO_WORDS_SHIFT), "words of the record"),
            (1, "0–63", "LSN: byte position in the endless log of records made"),
            (2, "0–63", "disk reference: (data file << 48) + (page in the file << 16) + slot"),
            (2, "0–63", f"CREATE, DROP: table; LCP, RESTART: local checkpoint (all {disk.UNDO_MARK_WORDS} words long)"),
            (3, _bits(disk.OWNER_TABLE_MASK), "table"),
            (3, f"{disk.OWNER_FRAGMENT_SHIFT}–62", "fragment"),
            (3, "0–63", "LCP: its epoch; RESTART: LSN of the UNDO_LCP record at which reading backward continues"),
            (4, "0–63", "epoch; RESTART: sequence of the group of that UNDO_LCP record"),
            (5, "0–63", "UPDATE, FREE: first word of the piece as it was; RESTART: position of that record's group"),
        ],
        "extent header": [
            (0, _bits(disk.OWNER_TABLE_MASK), "table; if the store has none of this number, it was dropped"),
            (0, _rest(disk.OWNER_FRAGMENT_SHIFT), "fragment"),
            (1, "0–62", f"first page: (data file << {disk_arena.FILE_SHIFT}) + page in the file"),
            (2, "0–62", "pages"),
            (3, "0–63", "0"),
        ],
        "disk part": [
            (0, _bits(row.DISK_WORDS_MASK), "words of the disk part"),
            (0, _bits((1 << row.VAR_VERSION_BITS) - 1, row.DISK_VERSION_SHIFT), f"version, {row.DISK_VERSION}"),
        ],
    }


def _load_record() -> list[tuple[int, str, str]]:
    return [
        (0, _bits(redo.KIND_MASK), "kind: FILES"),
        (0, f"{redo.WORDS_SHIFT}–62", "words of the record"),
        (1, "0–62", f"kind of files: {redo.FILES_LOAD} load files of one job"),
        (2, "0–62", "transaction id"),
        (3, "0–62", "number of the job"),
        (4, "0–62", "table"),
        (5, "0–62", "files; of each follow these words"),
        (6, "0–62", "fragment"),
        (7, "0–62", "part"),
        (8, "0–62", "attempt"),
        (9, "0–62", "random tag of its name"),
        (10, "0–62", "rows"),
        (11, "0–62", "pages of the rows"),
        (12, "0–62", "blocks in the file"),
        (13, "0–62", "words of records in them"),
        (14, "0–62", "bytes of the file"),
        (15, "0–63", f"XXH3-64 over {spool.DIGEST_PAD_WORDS - 1} zero words and the checksums of all blocks"),
        (16, "0–62", "logical page of the fragment that the file's page 0 becomes"),
    ]


def bit_fields() -> dict[str, list[tuple[int, str, str]]]:
    """(word, bits, meaning) of every field that is part of a word, from the constants of the code."""
    rowid = f"(logical page << {ids.SLOT_BITS}) + slot"
    return {
        **_disk_bit_fields(),
        "transaction record": [
            (0, _bits(redo.KIND_MASK), f"kind {redo.KIND_TRANSACTION}"),
            (0, _rest(redo.WORDS_SHIFT), "words of all records of the transaction, this one included"),
            (1, "0–63", f"transaction id: (incarnation << {ids.TXID_COUNTER_BITS}) + counter"),
            (2, "0–63", "operations"),
            (3, "0–63", "0"),
        ],
        "operation record": [
            (0, _bits(redo.KIND_MASK), "kind"),
            (
                0,
                _bits(redo.FLAGS_MASK, redo.FLAGS_SHIFT),
                f"flags; {redo.FLAG_VAR_KEPT}: the image has no var part, the row keeps its own; {redo.FLAG_DISK_KEPT}:"
                " the same of the disk part",
            ),
            (0, _rest(redo.WORDS_SHIFT), "words of the record"),
            (1, _bits(redo.TABLE_MASK), "table"),
            (1, _bits(redo.FRAGMENT_MASK, redo.FRAGMENT_SHIFT), "fragment"),
            (1, _bits(redo.SCHEMA_VERSION_MASK, redo.SCHEMA_VERSION_SHIFT), "schema version"),
            (2, _bits(redo.ROWID_MASK), f"first ROWID: {rowid}"),
            (2, _bits(redo.COUNT_MASK, redo.COUNT_SHIFT), "rows, at consecutive slots of one page"),
            (3, _bits(redo.ANY_VALUE_MASK), "any-value"),
            (3, _bits(redo.AUTHOR_MASK, redo.AUTHOR_SHIFT), "author"),
        ],
        "files record": [
            (0, _bits(redo.KIND_MASK), "kind: FILES"),
            (0, f"{redo.WORDS_SHIFT}–62", "words of the record"),
            (1, "0–62", f"kind of files: {redo.FILES_SPOOL} the spool file of a transaction"),
            (2, "0–62", "transaction id, which is the file's name in hexadecimal digits"),
            (3, "0–62", "blocks in the file"),
            (4, "0–62", "words of records in them"),
            (5, "0–62", "bytes of the file"),
            (6, "0–63", f"XXH3-64 over {spool.DIGEST_PAD_WORDS - 1} zero words and the checksums of all blocks"),
            (7, "0–63", "0"),
        ],
        "load record": _load_record(),
        "row entry": [
            (0, _bits(redo.ROWID_MASK), "ROWID"),
            (1, "0–62", "epoch of the last change"),
            (2, _bits(lcp.ENTRY_AUTHOR_MASK), "author"),
            (2, _bits(lcp.ENTRY_TABLE_MASK, lcp.ENTRY_TABLE_SHIFT), "table"),
            (2, _bits(lcp.ENTRY_FRAGMENT_MASK, lcp.ENTRY_FRAGMENT_SHIFT), "fragment"),
        ],
        "var part": [
            (0, _bits(row.VAR_WORDS_MASK), "words of the var part"),
            (0, _bits(row.VAR_COUNT_MASK, row.VAR_COUNT_SHIFT), "var columns"),
            (0, _bits(row.VAR_KEY_WORDS_MASK, row.VAR_KEY_WORDS_SHIFT), "words of canonical key after this word"),
            (0, _bits((1 << row.VAR_VERSION_BITS) - 1, row.VAR_VERSION_SHIFT), "version"),
        ],
    }


# Constants of these modules are the format; the versions a program still reads are not part of it.
_FORMAT_MODULES = {
    "backup": backup,
    "catalog": catalog,
    "disk": disk,
    "lcp": lcp,
    "load": load,
    "log": log,
    "redo": redo,
    "row": row,
    "sealed": sealed,
    "spool": spool,
    "sysfile": sysfile,
    "view": view,
}
# The fingerprint covers names too; these are the names at the time the format was fixed.
_NAMES = "engine.layout"
_NO_FORMAT = frozenset({"FORMAT_VERSION_OLDEST"})


def constants() -> dict[str, int]:
    """Return every integer that the layouts are made of: shifts, masks, kinds, sizes."""
    found = {
        f"{_NAMES}.{key}.{name}": value
        for key, module in _FORMAT_MODULES.items()
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int) and name not in _NO_FORMAT
    }
    elsewhere = {
        f"{_NAMES}.row.WORD_BYTES": words.WORD_BYTES,
        "ids.SLOT_BITS": ids.SLOT_BITS,
        "ids.MICRO_BITS": ids.MICRO_BITS,
        "ids.TXID_COUNTER_BITS": ids.TXID_COUNTER_BITS,
        "disk_arena.FILE_SHIFT": disk_arena.FILE_SHIFT,
        "disk_arena.FIRST_DATA_PAGE": disk_arena.FIRST_DATA_PAGE,
        "disk_arena.SLOT_BITS": disk_arena.SLOT_BITS,
        "arena.ENTRY_WORDS": arena.ENTRY_WORDS,
        "schema.JSON_VERSION": schema.JSON_VERSION,
        "schema.ALTERED_JSON_VERSION": schema.ALTERED_JSON_VERSION,
        "schema.DROPPED_JSON_VERSION": schema.DROPPED_JSON_VERSION,
    }
    return {**found, **elsewhere}
