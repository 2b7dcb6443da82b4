"""Statements of a source as schema changes: what they become, and that each is made once even after restarts."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.ingest import test_applier
from tests.ingest.recorded import Stream
from tests.ingest.test_applier import applier_of, apply, rows, source_position_of
from tidemark.engine.types import Int8
from tidemark.replication.binlog.position import Position
from tidemark.replication.ingest import schema
from tidemark.replication.ingest.address import Filter
from tidemark.replication.sql import statements as s

db = test_applier.db
ORIGIN = Position("master.000001", 400)
EVERYTHING = Filter()


def steps(text: str, wanted: Filter = EVERYTHING, database: str = "d") -> list[s.Statement]:
    return schema.steps_of(text, database, wanted, ORIGIN)


HISTORY = [
    "CREATE TABLE u (id INT PRIMARY KEY, a VARCHAR(10), b INT NOT NULL, KEY k (b), UNIQUE KEY q (a) USING BTREE)",
    "ALTER TABLE u ADD COLUMN c INT NOT NULL, ADD COLUMN e VARCHAR(5) DEFAULT 'x', ADD INDEX w (c)",
    "ALTER TABLE u DROP INDEX k, DROP COLUMN b, RENAME COLUMN e TO f, MODIFY f VARCHAR(50) DEFAULT 'y'",
    "RENAME TABLE u TO tmp, t TO u, tmp TO t",
    "ALTER TABLE u ALTER COLUMN n SET DEFAULT 7",
    "ALTER TABLE u MODIFY n BIGINT DEFAULT 7, MODIFY id BIGINT, ADD COLUMN o FLOAT NOT NULL DEFAULT 0.5",
    "ALTER TABLE u CHANGE o p DOUBLE DEFAULT 0.5",
    "ALTER TABLE t MODIFY c BIGINT NOT NULL, CHANGE a a VARCHAR(60)",  # of indexes w and q
    "CREATE TABLE r (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10))",
    "ALTER TABLE r ADD PARTITION (PARTITION p1 VALUES LESS THAN (20))",
    "ALTER TABLE r DROP PARTITION p0",
    "CREATE TABLE l (id INT PRIMARY KEY) PARTITION BY LIST (id) (PARTITION p0 VALUES IN (1, 2))",
    "ALTER TABLE l ADD PARTITION (PARTITION p1 VALUES IN (3, 4))",
    "ALTER TABLE l ADD PARTITION (PARTITION p2 VALUES IN (5), PARTITION p3 VALUES IN (6))",
    "ALTER TABLE l DROP PARTITION p2, p1",
    "ALTER TABLE l DROP PARTITION IF EXISTS p9",
    "ALTER TABLE l ADD PARTITION IF NOT EXISTS (PARTITION p5 VALUES IN (8), PARTITION p3 VALUES IN (6))",
    "CREATE INDEX h ON t (c)",
    "DROP INDEX h ON t",
    "ALTER TABLE t RENAME INDEX w TO x, RENAME KEY nowhere TO y",
    "ALTER TABLE t RENAME INDEX x TO w",
    "ALTER TABLE t ADD COLUMN IF NOT EXISTS g INT NOT NULL, ADD COLUMN IF NOT EXISTS c INT NOT NULL DEFAULT 9,"
    " DROP COLUMN IF EXISTS e, DROP INDEX IF EXISTS nowhere, RENAME COLUMN IF EXISTS e TO c,"
    " CHANGE COLUMN IF EXISTS e c INT NOT NULL DEFAULT 8, MODIFY COLUMN IF EXISTS g INT NOT NULL DEFAULT 3,"
    " ADD INDEX IF NOT EXISTS w (a), ADD CONSTRAINT IF NOT EXISTS w UNIQUE (a), ALTER COLUMN IF EXISTS e SET DEFAULT 1",
    "ALTER TABLE t RENAME COLUMN IF EXISTS g TO h, ADD INDEX IF NOT EXISTS by_h (h)",
    "ALTER TABLE t DROP INDEX IF EXISTS by_h, DROP COLUMN IF EXISTS h, DROP COLUMN IF EXISTS e",
    "ALTER TABLE IF EXISTS nowhere ADD COLUMN x INT, DROP COLUMN y",
    "RENAME TABLE IF EXISTS nowhere TO elsewhere",
    "CREATE INDEX IF NOT EXISTS h ON t (c)",
    "CREATE INDEX IF NOT EXISTS h ON t (f)",
    "DROP INDEX IF EXISTS h ON t",
    "CREATE OR REPLACE SEQUENCE counter START WITH 5",
    "ALTER TABLE t ANALYZE PARTITION ALL",
    "DROP TABLE l",
]


def described(db: tm.Database) -> dict[str, Any]:
    """Return every table by name, without version numbers."""
    found = {}
    for name in db.tables():
        definition = db[name].definition
        columns = [(column.name, column.type, column.nullable, column.default) for column in definition.columns]
        indexes = sorted((index.name, index.columns, index.is_unique) for index in definition.indexes)
        found[name] = (columns, definition.primary_key, definition.partition, indexes)
    return found


def test_history_of_schema_changes_ends_in_the_schema_of_the_source(db: tm.Database) -> None:
    stream = Stream()
    for text in HISTORY:
        stream.statement(text)
    apply(db, stream)
    assert sorted(db.tables()) == ["d.r", "d.t", "d.u"]
    t, u, r = (db[name].definition for name in ("d.t", "d.u", "d.r"))
    assert [column.name for column in t.columns] == ["id", "a", "c", "f"]
    assert t.columns[3].type == tm.VarChar(50) and t.columns[3].default == "y"
    assert not t.columns[2].has_default, "the value for the rows that were there is no default"
    kinds = sorted((index.name, index.is_unique, index.is_ordered) for index in t.indexes)
    assert kinds == [("q", True, True), ("w", False, True)]
    assert u.columns[2].default == 7
    kinds_of_u = [(column.name, column.type, column.nullable) for column in u.columns]
    assert kinds_of_u == [
        ("id", tm.Int64, False),
        ("a", tm.VarChar(20), True),
        ("n", tm.Int64, True),
        ("p", tm.Float64, True),
    ]
    assert list(r.partition.names) == ["p1"]
    assert source_position_of(db).position == stream.position and source_position_of(db).step == 0


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("point", ["before", "after"])
def test_schema_change_interrupted_at_any_step_is_made_once(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Each step of each statement meets a crash before or after it; the next process starts again from the row."""
    stream = Stream()
    for text in HISTORY:
        stream.statement(text)
    whole = stream.steps()
    real = schema.make
    crashes = 0

    def make(step: s.Statement, *others: Any) -> None:
        nonlocal crashes
        is_new = (step, source_position_of(db).position, source_position_of(db).step) not in seen
        seen.append((step, source_position_of(db).position, source_position_of(db).step))
        if is_new and point == "before":
            crashes += 1
            raise Crash
        real(step, *others)
        if is_new:
            crashes += 1
            raise Crash

    seen: list[Any] = []
    monkeypatch.setattr(schema, "make", make)
    while source_position_of(db).position < stream.position:
        at = source_position_of(db).position
        applier = applier_of(db)
        try:
            for step in whole[1:]:
                if step.origin.position >= at:  # type: ignore[union-attr]
                    applier.step(step)
            applier.flush()
        except Crash:
            continue
    assert crashes >= len(HISTORY) + 6
    broken = described(db)
    monkeypatch.undo()
    for name in db.tables():
        db.drop_table(name)
    test_applier.SourcePosition("main", 77, "master.000001", 4).save(db.parts.store)
    db.create_table("d.t", test_applier.DEFINITION.columns, "id")
    apply(db, stream)
    assert broken == described(db)


def test_refused_step_is_no_step_that_was_begun(db: tm.Database) -> None:
    """The next process refuses an existing table again, and does not take it for one made before a crash."""
    stream = Stream().statement("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    for _ in range(2):
        with pytest.raises(tm.Unsupported, match="exists") as caught:
            apply(db, stream)
        assert caught.value.file == "master.000001" and "--skip" in str(caught.value)
    assert source_position_of(db).step == 0
    apply(db, stream, skipped=frozenset({(caught.value.file, caught.value.position)}))
    assert source_position_of(db).position == stream.position


def test_truncate_empties_a_table_with_its_position(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 1), (2, "b", 2)).commit().statement("TRUNCATE TABLE `t`")
    apply(db, stream.begin().insert((3, "c", 3)).commit())
    assert rows(db) == [(3, "c", 3)] and source_position_of(db).changed_rows == 5


def test_emptied_partitions_lose_their_rows_with_the_position(db: tm.Database) -> None:
    r = type(test_applier.DEFINITION)(9, 1, "d.r", (tm.Column("id", tm.Int32),), ("id",))
    stream = Stream().statement(
        "CREATE TABLE r (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),"
        " PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN (30))"
    )
    stream.begin().insert((1,), (9,), (10,), (19,), (20,), definition=r).commit()
    apply(db, stream.statement("ALTER TABLE r TRUNCATE PARTITION p0, p2"))
    assert rows(db, "d.r") == [(10,), (19,)] and source_position_of(db).position == stream.position
    assert source_position_of(db).changed_rows == 8
    more = Stream(position=stream.position).statement("ALTER TABLE r TRUNCATE PARTITION p1, p9")
    with pytest.raises(tm.Unsupported, match="p9"):
        apply(db, more)
    assert rows(db, "d.r") == [(10,), (19,)]


@pytest.mark.parametrize(
    "clause",
    [
        "EXCHANGE PARTITION p WITH TABLE t",
        "REORGANIZE PARTITION p INTO (PARTITION q VALUES LESS THAN (5))",
        "REMOVE PARTITIONING",
        "PARTITION BY HASH (id) PARTITIONS 4",
        "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5))",
        "CONVERT PARTITION p TO TABLE u",
        "TRUNCATE PARTITION nowhere",
    ],
)
def test_partitions_whose_rows_move_stop_by_name(db: tm.Database, clause: str) -> None:
    made = "CREATE TABLE r (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))"
    with pytest.raises(tm.Unsupported, match=" ".join(clause.split()[:2])) as caught:
        apply(db, Stream().statement(made).statement(f"ALTER TABLE r {clause}"))
    assert "d.r" in str(caught.value) or "nowhere" in str(caught.value)
    assert db["d.r"].definition.partition.names == ("p",)


def test_partition_of_hashed_rows_is_not_emptied(db: tm.Database) -> None:
    with pytest.raises(tm.Unsupported, match="partitioned by hash here"):
        apply(db, Stream().statement("ALTER TABLE t TRUNCATE PARTITION p0"))


def test_key_that_is_modified_without_not_null_stays_a_key(db: tm.Database) -> None:
    """A server makes the columns of a primary key NOT NULL, whatever MODIFY says."""
    stream = Stream().begin().insert(*ROWS).commit().statement("ALTER TABLE t MODIFY id INT COMMENT 'x'")
    apply(db, stream.statement("ALTER TABLE t CHANGE id k INT FIRST"))
    column = db["d.t"].definition.columns[0]
    assert (column.name, column.nullable, column.has_default) == ("k", False, False) and rows(db) == ROWS


def test_values_are_those_of_the_column_though_another_is_dropped_before_it(db: tm.Database) -> None:
    """Story: after DROP COLUMN in the same statement the values of the column next to it were checked, and a change
    that the server had refused or cut was made here in silence.
    """
    stream = Stream().begin().insert((1, "a", None)).commit()
    with pytest.raises(tm.Unsupported, match=r"d\.t\.n has the value NULL"):
        apply(db, stream.statement("ALTER TABLE t DROP COLUMN a, MODIFY n INT NOT NULL"))
    assert rows(db) == [(1, "a", None)]


def test_indexes_that_exchange_names_stop(db: tm.Database) -> None:
    db.create_index("d.t", "x", ["a"])
    db.create_index("d.t", "y", ["n"])
    with pytest.raises(tm.Unsupported, match="has an index y"):
        apply(db, Stream().statement("ALTER TABLE t RENAME INDEX x TO y, RENAME INDEX y TO x"))
    assert [(each.name, each.columns) for each in db["d.t"].definition.indexes] == [("x", ("a",)), ("y", ("n",))]


def test_dropped_database_takes_its_tables_along(db: tm.Database) -> None:
    db.create_table("dd.x", [tm.Column("id", tm.Int32)], "id")
    apply(db, Stream().statement("drop database if exists `d`", ""))
    assert db.tables() == ["dd.x"]


def test_table_made_and_filled_by_one_statement_comes_whole(db: tm.Database) -> None:
    """CREATE TABLE … SELECT is a statement within the transaction that fills the table."""
    from tidemark.replication.binlog.events import Query

    made = type(test_applier.DEFINITION)(9, 1, "d.n", (tm.Column("id", tm.Int32),), ("id",))
    stream = Stream().mariadb().add(Query("CREATE TABLE n (id INT PRIMARY KEY)", "d"))
    stream.insert((1,), (2,), definition=made).commit()
    apply(db, stream)
    assert rows(db, "d.n") == [(1,), (2,)] and source_position_of(db).position == stream.position
    assert source_position_of(db).step == 0


def test_tinyint_of_one_digit_is_a_number() -> None:
    (step,) = steps("CREATE TABLE t (id INT PRIMARY KEY, f BOOL NOT NULL DEFAULT TRUE)")
    assert isinstance(step, s.CreateTable)
    assert step.definition.columns[1].type == Int8 and step.definition.columns[1].default == 1


@pytest.mark.parametrize(
    "text",
    [
        "GRANT ALL ON *.* TO x",
        "CREATE DEFINER=`root`@`localhost` TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET @a = 1",
        "CREATE OR REPLACE VIEW v AS SELECT 1",
        "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `x`",
        "ANALYZE TABLE t",
        "CREATE USER e",
        "ALTER TABLE t ENGINE=InnoDB",
        "FLUSH TABLES",
        "CREATE SEQUENCE x",
        "alter sequence d.x RESTART 5",
        "DROP SEQUENCE IF EXISTS x, y",
    ],
)
def test_statement_that_changes_no_rows_is_skipped(text: str) -> None:
    assert steps(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD COLUMN x TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
        "ALTER TABLE t ADD COLUMN x DATE NOT NULL",
        "CREATE TABLE t (a INT)",
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
        "SET STATEMENT max_statement_time=1 FOR DROP TABLE t",
        "nonsense",
    ],
)
def test_statement_that_is_not_understood_stops_with_place_and_text(text: str) -> None:
    with pytest.raises(tm.Unsupported) as caught:
        steps(text)
    assert (caught.value.file, caught.value.position, caught.value.statement) == (*ORIGIN, text)


def test_statement_that_is_not_understood_stops_no_replica_that_does_not_want_its_tables() -> None:
    wanted = Filter(("shop.%",))
    assert steps("CREATE TABLE t SELECT 1", wanted, "other") == []
    assert steps("ALTER TABLE `log` PARTITION BY nonsense", Filter((), ("shop.log",)), "shop") == []
    for text, database in (("CREATE TABLE t SELECT 1", "shop"), ("CREATE TABLE shop.t SELECT 1", "other")):
        with pytest.raises(tm.Unsupported):
            steps(text, wanted, database)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("ALTER TABLE t ADD KEY b (a(5)), ADD FULLTEXT KEY f (a), ADD CHECK (n > 0), ALGORITHM=INSTANT, LOCK=NONE", []),
        ("ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY g (n) REFERENCES u (id) ON DELETE RESTRICT, ENGINE=InnoDB", []),
        ("ALTER TABLE t DROP FOREIGN KEY f, DROP CHECK c, FORCE", []),
        (
            "ALTER TABLE t DROP FOREIGN KEY f, CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            [s.SetCharset, s.SetCharset],
        ),
        ("CREATE DATABASE e", [s.DatabaseCharset]),
        ("ALTER TABLE t ADD CONSTRAINT q UNIQUE (n), COMMENT 'x'", [s.CreateIndex]),
        (
            "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, KEY (id), KEY (id))",
            [s.DropTable, s.CreateTable, s.CreateIndex, s.CreateIndex],
        ),
    ],
)
def test_what_concerns_only_the_source_is_skipped(text: str, made: list[type]) -> None:
    assert [type(each) for each in steps(text)] == made


def test_table_like_another_has_its_columns_and_indexes(db: tm.Database) -> None:
    db.create_index("d.t", "u", ["a"], unique=True)
    apply(db, Stream().statement("CREATE TABLE x LIKE t"))
    x, t = (db[name].definition for name in ("d.x", "d.t"))
    assert (x.columns, x.primary_key) == (t.columns, t.primary_key)
    assert [(index.name, index.columns, index.is_unique) for index in x.indexes] == [("u", ("a",), True)]


def test_rename_across_the_border_of_a_filter_stops() -> None:
    with pytest.raises(tm.Unsupported, match="only one of them"):
        steps("RENAME TABLE t TO other.t", Filter(("d.%",)))


STRICT = 1 << 21
ROWS = [(1, "a", 1), (2, "ü", None), (3, "a longer text", 70_000)]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t MODIFY n INT DEFAULT 5",
        "ALTER TABLE t MODIFY n MEDIUMINT COMMENT 'x'",
        "ALTER TABLE t CHANGE COLUMN n n MEDIUMINT FIRST",
        "ALTER TABLE t MODIFY a VARCHAR(300) CHARACTER SET utf8mb4",
        "ALTER TABLE t MODIFY a TEXT CHARACTER SET latin1",
        "ALTER TABLE t MODIFY a VARCHAR(20) COLLATE utf8mb4_bin NOT NULL",
        "ALTER TABLE t MODIFY id INT NOT NULL",
    ],
)
def test_change_of_a_type_that_changes_no_value_is_made(db: tm.Database, text: str) -> None:
    apply(db, Stream().begin().insert(*ROWS).commit().statement(text))
    assert rows(db) == ROWS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ALTER TABLE t MODIFY n INT NOT NULL", "NULL"),
        ("ALTER TABLE t MODIFY a VARCHAR(20) CHARACTER SET ascii", "'ü'"),
        ("ALTER TABLE t MODIFY a TEXT", "'ü'"),
        ("ALTER TABLE t CHANGE a b VARCHAR(20) CHARACTER SET ascii", "'ü'"),
        ("ALTER TABLE t MODIFY n INT AUTO_INCREMENT", "NULL"),
    ],
)
def test_change_of_a_type_that_changes_a_value_stops_and_names_it(db: tm.Database, text: str, shown: str) -> None:
    """Story: MODIFY to NOT NULL made zeros of NULLs at the server and of nothing here, in silence."""
    stream = Stream().begin().insert(*ROWS).commit().statement(text)
    with pytest.raises(tm.Unsupported) as caught:
        apply(db, stream)
    said = str(caught.value)
    assert f" has the value {shown}" in said and "d.t." in said and "--skip master.000001:" in said
    assert [column.name for column in db["d.t"].definition.columns] == ["id", "a", "n"] and rows(db) == ROWS


def test_column_that_is_renamed_and_changed_has_both(db: tm.Database) -> None:
    apply(db, Stream().begin().insert(*ROWS[:1]).commit().statement("ALTER TABLE t CHANGE a b VARCHAR(30) DEFAULT 'x'"))
    column = db["d.t"].definition.columns[1]
    assert (column.name, column.type, column.default) == ("b", tm.VarChar(30), "x") and rows(db) == ROWS[:1]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD COLUMN x INT DEFAULT 5, MODIFY n TINYINT",
        "ALTER TABLE t ADD COLUMN x INT DEFAULT 5, ADD COLUMN n INT",
        "ALTER TABLE t RENAME COLUMN a TO x, MODIFY n INT NOT NULL",
        "ALTER TABLE t ADD KEY (n), MODIFY a INT PRIMARY KEY",
        "ALTER TABLE t ADD COLUMN x INT, ALTER COLUMN n SET DEFAULT 1.5",
    ],
)
def test_statement_that_cannot_be_made_whole_is_not_begun(db: tm.Database, text: str) -> None:
    """Story: the first clauses of a refused ALTER TABLE were made, and making it by hand then failed."""
    before = described(db)
    with pytest.raises(tm.Unsupported):
        apply(db, Stream().begin().insert((2, "b", None)).commit().statement(text))
    assert described(db) == before and source_position_of(db).step == 0


def test_dropped_partition_of_text_stops(db: tm.Database) -> None:
    """Story: a server keeps 'B' before 'c' by its collation and here it is after; other rows were dropped."""
    made = (
        "CREATE TABLE r (k VARCHAR(9) PRIMARY KEY) PARTITION BY RANGE COLUMNS (k) (PARTITION p VALUES LESS THAN ('c'),"
    )
    stream = (
        Stream().statement(f"{made} PARTITION q VALUES LESS THAN MAXVALUE)").statement("ALTER TABLE r DROP PARTITION p")
    )
    with pytest.raises(tm.Unsupported, match="collation"):
        apply(db, stream)


def test_types_of_the_source_are_known_from_its_statements(db: tm.Database) -> None:
    """Story: a SET with one more member at its end stopped the ingest, for here it is a number."""
    made = "CREATE TABLE k (id INT PRIMARY KEY, s SET('x','y'), f DOUBLE, v VARCHAR(9)) CHARACTER SET utf8mb4"
    stream = Stream().statement(made)
    apply(db, stream)
    definition = db["d.k"].definition
    stream = Stream(position=stream.position).begin().insert((1, 3, 0.5, "漢"), definition=definition).commit()
    stream.statement("ALTER TABLE k MODIFY s SET('x','y','z'), MODIFY v VARCHAR(20)")
    stream.statement("RENAME TABLE k TO l").statement("ALTER TABLE l RENAME COLUMN f TO g, ADD COLUMN w VARCHAR(3)")
    stream.statement("ALTER TABLE l ALTER g SET DEFAULT 1.239, ALTER s SET DEFAULT 'x,z'")
    stream.statement("CREATE TABLE m LIKE l").statement(
        "ALTER TABLE m ALTER g SET DEFAULT 2.5, MODIFY s SET('x','y','z','a')"
    )
    apply(db, stream)
    assert [column.default for column in db["d.l"].definition.columns[1:3]] == [5, 1.239]
    assert db["d.m"].definition.columns[2].default == 2.5
    with pytest.raises(tm.Unsupported, match="has the value 3"):
        apply(db, Stream(position=stream.position).statement("ALTER TABLE l MODIFY s SET('y','x','z')"))


@pytest.mark.parametrize(
    "texts",
    [
        ["ALTER TABLE k DEFAULT CHARACTER SET latin1"],
        ["ALTER TABLE k ENGINE=InnoDB CHARSET=latin1"],
        ["ALTER TABLE k ADD COLUMN x INT, DEFAULT COLLATE latin1_bin"],
        ["CREATE TABLE o LIKE k", "ALTER TABLE o CHARSET latin1", "RENAME TABLE k TO p, o TO k"],
        [
            "ALTER DATABASE d CHARACTER SET latin1",
            "CREATE OR REPLACE TABLE k (id INT PRIMARY KEY, v VARCHAR(9) CHARSET utf8mb4)",
        ],
        [
            "DROP TABLE k",
            "ALTER DATABASE CHARSET ascii",
            "CREATE TABLE k (id INT PRIMARY KEY, v VARCHAR(9) CHARSET utf8mb4)",
        ],
    ],
)
def test_character_set_of_new_columns_is_followed(db: tm.Database, texts: list[str]) -> None:
    """Without a character set in its statement, a column gets the table's, and the server loses other characters."""
    stream = Stream().statement("CREATE DATABASE d CHARACTER SET utf8mb4")
    stream.statement("CREATE TABLE k (id INT PRIMARY KEY, v VARCHAR(9))").statement(
        "ALTER TABLE k MODIFY v VARCHAR(10)"
    )
    for text in texts:
        stream.statement(text)
    apply(db, stream)
    definition = db["d.k"].definition
    values = (1, "ж", *[None] * (len(definition.columns) - 2))
    again = Stream(position=stream.position).begin().insert(values, definition=definition).commit()
    with pytest.raises(tm.Unsupported, match="'ж'"):
        apply(db, again.statement("ALTER TABLE k MODIFY v VARCHAR(30)"))


def test_what_is_known_of_types_is_forgotten_with_a_skipped_statement(db: tm.Database) -> None:
    """What a skipped statement did at the source is not known; the old members of a SET would be taken for the new."""
    stream = Stream().statement("CREATE TABLE k (id INT PRIMARY KEY, s SET('x','y'))")
    apply(db, stream)
    skipped = (stream.file, stream.position)
    again = Stream(position=stream.position).statement("ALTER TABLE k MODIFY s SET('y','x')")
    skipped = (again.file, next(step.origin.position for step in again.steps() if hasattr(step, "text")))
    apply(db, again, skipped=frozenset({skipped}))
    last = Stream(position=again.position).begin().insert((1, 1), definition=db["d.k"].definition).commit()
    with pytest.raises(tm.Unsupported, match="has the value 1"):
        apply(db, last.statement("ALTER TABLE k MODIFY s SET('x','y','z')"))


def test_table_made_by_hand_has_no_known_types(db: tm.Database) -> None:
    stream = Stream().statement("CREATE TABLE k (id INT PRIMARY KEY, f DOUBLE)")
    apply(db, stream)
    db.drop_table("d.k")
    db.create_table("d.k", [tm.Column("id", tm.Int32), tm.Column("f", tm.Float64)], "id")
    with pytest.raises(tm.Unsupported, match=r"d\.k\.f.*not known here"):
        apply(db, Stream(position=stream.position).statement("ALTER TABLE k ALTER f SET DEFAULT 0.5"))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("INT1", Int8),
        ("MIDDLEINT UNSIGNED", tm.UInt32),
        ("INT8", tm.Int64),
        ("FLOAT8", tm.Float64),
        ("DOUBLE PRECISION(6,2)", tm.Float64),
        ("NCHAR(5)", tm.Char(5)),
        ("NATIONAL CHARACTER(5)", tm.Char(5)),
        ("CHAR VARYING(5)", tm.VarChar(5)),
        ("NATIONAL CHAR VARYING(5)", tm.VarChar(5)),
        ("NCHAR VARCHAR(5)", tm.VarChar(5)),
        ("NVARCHAR(5)", tm.VarChar(5)),
        ("VARCHARACTER(5)", tm.VarChar(5)),
        ("LONG", tm.Text),
        ("LONG CHAR VARYING", tm.Text),
        ("LONG VARBINARY", tm.Blob),
        ("CHAR(5) BINARY", tm.Char(5)),
        ("CHAR(4) BYTE", tm.Binary(4)),
        ("VARCHAR(4) CHARACTER SET binary DEFAULT 'ab'", tm.VarBinary(4)),
        ("TINYTEXT CHARSET binary", tm.Blob),
        ("SERIAL", tm.UInt64),
        ("INT SERIAL DEFAULT VALUE", tm.Int32),
    ],
)
def test_every_name_of_a_type_is_known(words: str, kind: Any) -> None:
    """Story: a copy took the types that CREATE TABLE has other names for, and the stream stopped at those names."""
    step = steps(f"CREATE TABLE t (id INT PRIMARY KEY, c {words}, d INT)")[0]
    assert isinstance(step, s.CreateTable) and [each.type for each in step.definition.columns[1:]] == [kind, tm.Int32]
    assert step.definition.columns[1].nullable == ("SERIAL" not in words)


@pytest.mark.parametrize("words", ["LONG CHAR", "NATIONAL TEXT(", "DOUBLE(PRECISION)", "`INT8`", "BYTE"])
def test_name_of_no_type_stops(words: str) -> None:
    with pytest.raises(tm.Unsupported):
        steps(f"CREATE TABLE t (id INT PRIMARY KEY, c {words}, d INT)")


def test_json_is_what_the_server_means_by_it() -> None:
    """Story: the copy of MySQL's JSON made Text, and the stream JSON."""
    text = "CREATE TABLE `t` (`id` int NOT NULL, `j` json DEFAULT NULL, PRIMARY KEY (`id`)) DEFAULT CHARSET=utf8mb4"
    for is_mariadb, kind in ((False, tm.JSON), (True, tm.Text)):
        assert schema.table_of_text(text, "d", is_mariadb).definition.columns[1].type == kind


def test_default_of_bytes_is_what_a_server_shows_as_it_is() -> None:
    """Story: MariaDB shows the bytes of a default as they are. Those that are not UTF-8 ended the copy with an error of
    Python.
    """
    shown = (
        b"CREATE TABLE `t` (`id` int NOT NULL, `b` %s DEFAULT '\\0\xff', PRIMARY KEY (`id`)) DEFAULT CHARSET=utf8mb4"
    )
    for kind, value in ((b"varbinary(4)", b"\0\xff"), (b"binary(4)", b"\0\xff\0\0")):
        text = (shown % kind).decode("utf-8", "surrogateescape")
        assert schema.table_of_text(text, "d", True).definition.columns[1].default == value
    with pytest.raises(tm.Unsupported, match="character set"):
        schema.table_of_text((shown % b"varchar(4)").decode("utf-8", "surrogateescape"), "d", True)


def test_medium_integer_that_gets_a_sign_holds_all_values_of_both(db: tm.Database) -> None:
    """Story: MEDIUMINT UNSIGNED to INT keeps all values at the server, and stopped: here it is UInt32 to Int32."""
    stream = Stream().statement("CREATE TABLE k (id INT PRIMARY KEY, m MEDIUMINT UNSIGNED)")
    apply(db, stream)
    db["d.k"].insert((1, 16_777_215))
    for text, kind in (
        ("MODIFY m INT", tm.Int64),
        ("MODIFY m INT COMMENT 'x' DEFAULT -1", tm.Int64),
        ("CHANGE m n INT", tm.Int64),
        ("MODIFY n BIGINT", tm.Int64),
    ):
        stream = Stream(position=stream.position).statement(f"ALTER TABLE k {text}")
        apply(db, stream)
        assert db["d.k"].definition.columns[1].type == kind
    assert rows(db, "d.k") == [(1, 16_777_215)]
    stream = Stream(position=stream.position).statement("CREATE TABLE l (id INT PRIMARY KEY, m INT UNSIGNED)")
    apply(db, stream)
    with pytest.raises(tm.Unsupported, match="does not hold all its values"):
        apply(db, Stream(position=stream.position).statement("ALTER TABLE l MODIFY m INT"))
