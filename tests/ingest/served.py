"""What a real server makes of cases (`served_cases.py`), and what a store makes of the binlog that it wrote.

Run by hand (`python -m tests.ingest.served`), it writes the table of the tests: `served.binlog.xz`, the events of all
cases, and `served.json`, what the server had in the end. `--fresh SEED COUNT` compares other cases with the server and
writes nothing.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.ingest.rig import Source, running_source
from tests.ingest.served_cases import Case, change_cases, literal_cases
from tests.store.support import open_memory
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.ingest.address import Filter
from tidemark.replication.ingest.applier import Applier
from tidemark.replication.ingest.source_position import INGEST, INGEST_TABLE, SourcePosition, read_source_position
from tidemark.replication.ingest.transactions import Change, StatementText, Step, TransactionReader

FOLDER = Path(__file__).parent
BINLOG, TABLE = FOLDER / "served.binlog.xz", FOLDER / "served.json"
LITERALS, CHANGES = 1_000, 330  # drawn; a server refuses many
_NUMBERED = re.compile(r"\bt(\d+)\b")
_FILE = "master.000001"
SIZES = {"data_memory": "64 MiB", "redo_log": "256 MiB", "transaction_memory": "4 MiB"}
# The expression that shows a type's values exactly.
_EXACT = {
    **dict.fromkeys(["float", "double"], "c*1e0"),
    **dict.fromkeys(["bit", "set", "tinyint", "smallint", "mediumint", "int", "bigint", "year"], "c+0"),
    **dict.fromkeys(
        ["char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"],
        "CONCAT('x', HEX(CONVERT(c USING utf8mb4)))",
    ),
    **dict.fromkeys(
        ["binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "point"], "CONCAT('x', HEX(c))"
    ),
}


@dataclass
class Served:
    """Cases by number, those of them that the server accepted with their values of `c` by id, and its binlog."""

    cases: list[Case]
    values: dict[int, list[str | None]]
    binlog: bytes


def serve(source: Source, cases: list[Case]) -> Served:
    """Run all cases, each with a table of its own."""
    import pymysql

    source.reset("d")
    connection = pymysql.connect(unix_socket=source.address.socket, user="root", charset="utf8mb4", database="d")
    connection.autocommit(True)
    values: dict[int, list[str | None]] = {}
    for number, case in enumerate(cases):
        try:
            for octets in case.statements(f"t{number}"):
                connection.query(octets)
        except (pymysql.MySQLError, UnicodeError):
            continue
        values[number] = _values(connection, f"t{number}")
    connection.close()
    (file,) = source.binlogs()
    return Served(cases, values, file.read_bytes())


def _values(connection: Any, table: str) -> list[str | None]:
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone='+00:00', NAMES utf8mb4")
        cursor.execute(
            "SELECT data_type FROM information_schema.columns WHERE table_schema='d' AND column_name='c' AND"
            f" table_name='{table}'"
        )
        (kind,) = cursor.fetchone()
        cursor.execute(f"SELECT CONCAT('', {_EXACT.get(kind, 'c')}) FROM {table} ORDER BY id")
        found = [value for (value,) in cursor.fetchall()]
    if kind in ("float", "double"):
        return [None if value is None else repr(float(value) + 0.0) for value in found]
    return [None if value is None else _plain(str(value)) for value in found]


def _plain(text: str) -> str:
    """Return a server's text of a value in one form: no zeros at the end of a fraction, no sign of zero."""
    if re.fullmatch(r"-?\d+\.\d+", text):
        text = text.rstrip("0").rstrip(".")
    text = re.sub(r"^-0$", "0", text)
    return re.sub(r"(:\d\d)\.0+$", r"\1", re.sub(r"(:\d\d\.\d*?[1-9])0+$", r"\1", text))


def _shown(value: Any) -> str | None:
    """Return a value of the store in the form of `_plain`."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        return "x" + (value.encode() if isinstance(value, str) else value).hex().upper()
    if isinstance(value, datetime):
        value = value.replace(tzinfo=None).isoformat(" ")
    if isinstance(value, float):
        return repr(value + 0.0)  # no sign of zero
    return _plain(format(value, "f") if isinstance(value, Decimal) else str(value))


def replay(binlog: bytes, wanted: frozenset[int]) -> dict[int, Any]:
    """Apply the events of a server's binlog to a store, those of the wanted cases; return what each table has in the
    end, or the error that stopped it.
    """
    found: dict[int, Any] = {}
    with open_memory(**SIZES) as db:
        db.create_table(INGEST, INGEST_TABLE.columns, INGEST_TABLE.primary_key)
        SourcePosition("main", 77, _FILE, b.FIRST_POSITION).save(db.parts.store)
        for number, steps in _by_case(binlog):
            if number in wanted:
                found[number] = _outcome(db, f"d.t{number}", steps)
                if f"d.t{number}" in db.tables():  # the catalog is written as a whole for each table
                    db.drop_table(f"d.t{number}")
    return found


def _by_case(binlog: bytes) -> Iterator[tuple[int, list[Step]]]:
    """Yield the steps of each case: a server ran the cases one after the other."""
    reader = TransactionReader(_FILE, b.FIRST_POSITION)
    case, steps = -1, list[Step]()
    at = b.FIRST_POSITION
    while at < len(binlog):
        size = e.parse_header(binlog[at : at + b.HEADER_BYTES], Position(_FILE, at)).event_bytes
        step = reader.step(binlog[at : at + size])
        at += size
        if step is None:
            continue
        number = _number(step, case)
        if number != case:
            yield case, steps
            case, steps = number, []
        steps.append(step)
    yield case, steps


def _outcome(db: tm.Database, table: str, steps: list[Step]) -> Any:
    store = db.parts.store
    position = read_source_position(store, "main")
    assert position is not None
    applier = Applier(store, db, replace(position, step=0), Filter(("d.%",)))
    try:
        for step in steps:
            applier.step(step)
        applier.flush()
    except tm.Error as error:
        return error
    return [_shown(value) for _, value in sorted(tuple(row) for row in db[table].scan(["id", "c"]))]


def _number(step: Any, last: int) -> int:
    """Return the number of the case that a step belongs to; the end of a transaction belongs to the last one."""
    text = step.map.table if isinstance(step, Change) else step.text if isinstance(step, StatementText) else ""
    found = _NUMBERED.search(text)
    return int(found[1]) if found else last


def differences(served: Served) -> tuple[list[str], Counter[str]]:
    """Replay cases; return what is silently different, and counts of equal and stopped cases."""
    wrong, counts = [], Counter[str]()
    found = replay(served.binlog, frozenset(served.values))
    for number, values in served.values.items():
        here = found.get(number, "missing")
        if isinstance(here, tm.Error):
            is_typed = type(here) in (tm.Unsupported, tm.ValueOutOfRange)
            counts["stopped" if is_typed else "stopped otherwise"] += 1
            if not is_typed:
                wrong.append(f"{served.cases[number]}: {here!r}")
        elif here == values:
            counts["equal"] += 1
        else:
            wrong.append(f"{served.cases[number]}: here {here}, at the server {values}")
    return wrong, counts


def save(served: Served) -> None:
    BINLOG.write_bytes(lzma.compress(served.binlog, preset=9 | lzma.PRESET_EXTREME))
    lines = [
        json.dumps([number, case.session, case.before, case.change, served.values[number]], ensure_ascii=False)
        for number, case in enumerate(served.cases)
        if number in served.values
    ]
    TABLE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def saved() -> Served:
    """Return the kept table."""
    cases: dict[int, Case] = {}
    values = {}
    for number, session, before, change, value in json.loads(TABLE.read_text(encoding="utf-8")):
        cases[number], values[number] = Case(session, tuple(before), change), value
    none = Case("plain", (), "")
    return Served([cases.get(n, none) for n in range(max(cases) + 1)], values, lzma.decompress(BINLOG.read_bytes()))


def main(arguments: list[str]) -> None:
    if arguments:
        seed, count = int(arguments[1]), int(arguments[2])
        cases = [*literal_cases(count, seed), *change_cases(count // 2, seed)]
    else:
        cases = [*literal_cases(LITERALS), *change_cases(CHANGES)]
    with running_source() as source:
        served = serve(source, cases)
    wrong, counts = differences(served)
    for each in wrong:
        print(each)
    print(dict(counts), len(wrong), "wrong of", len(served.values))
    if not arguments and not wrong:
        save(served)


if __name__ == "__main__":
    main(sys.argv[1:])
