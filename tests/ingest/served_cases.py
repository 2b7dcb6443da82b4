"""Cases for a real server: literals as defaults of columns of every type, and MODIFY between types, in many sessions.

A case is a table, its rows and statements. The server says what its column `c` has in the end (`served.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

# Names of sessions, and what makes them.
SESSIONS = {
    "plain": "SET sql_mode='', time_zone='+00:00', NAMES utf8mb4",
    "strict": "SET sql_mode='STRICT_TRANS_TABLES,NO_ZERO_DATE', time_zone='+00:00', NAMES utf8mb4",
    "east": "SET sql_mode='', time_zone='+05:30', NAMES utf8mb4",
    "west": "SET sql_mode='STRICT_ALL_TABLES', time_zone='-03:30', NAMES utf8mb4",
    "system": "SET sql_mode='', time_zone='SYSTEM', NAMES utf8mb4",
    "rounding": "SET sql_mode='TIME_ROUND_FRACTIONAL', time_zone='+00:00', NAMES utf8mb4",
    "no escapes": "SET sql_mode='NO_BACKSLASH_ESCAPES', time_zone='+00:00', NAMES utf8mb4",
    "ansi": "SET sql_mode='ANSI,NO_BACKSLASH_ESCAPES', time_zone='+00:00', NAMES utf8mb4",
    "odd": "SET sql_mode='HIGH_NOT_PRECEDENCE,EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH', time_zone='+00:00',"
    " NAMES utf8mb4",
    "real": "SET sql_mode='REAL_AS_FLOAT,PIPES_AS_CONCAT,NO_UNSIGNED_SUBTRACTION', time_zone='+00:00', NAMES utf8mb4",
    "latin1": "SET sql_mode='', time_zone='+00:00', NAMES latin1",
    "cp1251": "SET sql_mode='', time_zone='+00:00', NAMES cp1251",
    "gbk": "SET sql_mode='', time_zone='+00:00', NAMES gbk",
    "sjis": "SET sql_mode='', time_zone='+00:00', NAMES sjis",
    "half": "SET sql_mode='', time_zone='+00:00', NAMES utf8mb4, character_set_connection=latin1",
    "old": "SET sql_mode='', time_zone='+00:00', NAMES utf8mb4, explicit_defaults_for_timestamp=0",
}
CODECS = {"latin1": "cp1252", "cp1251": "cp1251", "gbk": "gbk", "sjis": "shift_jis"}
TYPES = (
    *("TINYINT", "TINYINT(1)", "BOOL", "TINYINT UNSIGNED", "SMALLINT", "SMALLINT UNSIGNED", "MEDIUMINT", "INT"),
    *("MEDIUMINT UNSIGNED", "INT(3) ZEROFILL", "INT UNSIGNED", "BIGINT", "BIGINT UNSIGNED"),
    *("DECIMAL(4,2)", "DECIMAL(5)", "DECIMAL(10,3) UNSIGNED", "NUMERIC", "DECIMAL(38,20)"),
    *("FLOAT", "FLOAT(5,2)", "FLOAT(30)", "FLOAT UNSIGNED", "DOUBLE", "DOUBLE(6,2)", "REAL", "DOUBLE PRECISION"),
    *("BIT", "BIT(8)", "BIT(64)", "YEAR", "DATE", "DATETIME", "DATETIME(3)", "DATETIME(6)"),
    *("TIMESTAMP NULL", "TIMESTAMP(3) NULL", "TIME", "TIME(2)", "TIME(6)"),
    *("CHAR(5)", "VARCHAR(10)", "VARCHAR(10) CHARACTER SET latin1", "VARCHAR(10) CHARSET ascii", "TINYTEXT", "TEXT"),
    *("CHAR(5) COLLATE utf8mb4_bin", "LONGTEXT", "JSON", "BINARY(4)", "VARBINARY(6)", "BLOB", "TINYBLOB"),
    *("ENUM('x','y','ü')", "ENUM('1','2 ')", "SET('a','b','c')", "SET('1','ü')", "CHARACTER(3)", "INTEGER"),
)
LITERALS = (
    *("0", "1", "2", "5", "-5", "+5", "007", "127", "128", "255", "-128", "300", "1999", "2024", "24", "69", "70"),
    *("65535", "8388607", "16777215", "2147483647", "4294967295", "9223372036854775807", "18446744073709551615"),
    *("-0", "-0.0", "0.0", ".5", "-.5", "1.5", "2.5", "-1.5", "0.005", "1.005", "1.234", "1.239", "1.235", "12.345"),
    *("99.994", "99.995", "1.", "00.50", "1.10", "123456.789", "1e2", "1E-2", "-1e3", "1.5e0", "0e0", "-0e0", "1e30"),
    *("0.1", "16777217", "0.30000000000000004", "9007199254740993", "3.4028235e38", "TRUE", "FALSE", "NULL"),
    *("'5'", "'-5'", "'+7'", "'007'", "' 5'", "'5 '", "'1.5'", "'.5'", "'1e2'", "'-0'", "'1.239'", "'abc'", "''"),
    *("'a '", "'  '", "'ab  '", "'abcdefgh'", "'it''s'", "'a\\nb'", "'a\\\\b'", "'\\%'", "'\\_'", "'\\0'", "'a\\''"),
    *('"q"', '"it\'s"', "'ü'", "'ж'", "'漢字'", "'😀'", "'a' 'b'", "N'n'", "_utf8mb4'u'", "_latin1'l'"),
    *("x'41'", "0x41", "X'C3BC'", "x'FF'", "0x00", "x''", "b'101'", "b'1000001'", "B'0'", "b''"),
    *("'x'", "'X'", "'y '", "'z'", "'1'", "'2'", "'a,b'", "'c,a'", "'a,a'", "'A'", "'{\"a\": 1}'", "'[]'"),
    *("'2024-02-29'", "'2024-2-9'", "'24-02-29'", "20240229", "'20240229'", "'2023-02-29'", "'2024-00-10'"),
    *("'0000-00-00'", "'0000-00-00 00:00:00'", "'0000-00-00 00:00:00.000'", "'2024-02-29 01:02:03'"),
    *("'2024-02-29 01:02:03.9'", "'2024-02-29 01:02:03.4567'", "'2024-02-29T23:59:59.999999'", "20240229010203"),
    *("'2024-02-29 01:02:03.1234567'", "'2024-02-29 01:02'", "'2024/02/29'", "'2024-02-29 24:00:00'", "'2024.02.29'"),
    *("'1970-01-01 00:00:00'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2038-01-19 08:44:07.999'"),
    *("'9999-12-31 23:59:59.999999'", "'0001-01-01'", "'1000-01-01 00:00:00'", "'2024-02-29 01:02:03+02:00'"),
    *("'12'", "'0102'", "'10:11:12'", "'10:11:12.9'", "'10:11:12.4567'", "'10:11'", "'1:2:3'", "'23:59:59.999999'"),
    *("'24:00:00'", "'-00:00:01'", "'838:59:59'", "'1 02:03:04'", "101112", "'101112'", "'00:00:00'", "'2155'"),
    *("'1901'", "1901", "2155", "'0000'", "'00'", "'0'", "00", "1", "99", "DATE'2024-01-02'", "TIME'01:02:03'"),
    *("CURRENT_TIMESTAMP", "NOW()", "(1+1)", "(UUID())", "CURDATE()"),
)
USES = ("add", "create", "set")
_SAMPLE = 20_261_128


@dataclass(frozen=True)
class Case:
    """Statements about the table `NAME`, whose column `c` is compared. `session` is that of `change`, before which rows
    are written, and after which `after` is run.
    """

    session: str
    before: tuple[str, ...]
    change: str
    after: tuple[str, ...] = ()

    def statements(self, name: str) -> list[bytes]:
        """Return the statements to send, in their sessions' character sets."""
        plain = SESSIONS["plain"]
        codec = CODECS.get(self.session, "utf-8")
        octets = [plain.encode(), *(each.replace("NAME", name).encode() for each in self.before)]
        octets += [SESSIONS[self.session].encode(), self.change.replace("NAME", name).encode(codec)]
        return [*octets, plain.encode(), *(each.replace("NAME", name).encode() for each in self.after)]


def literal_case(kind: str, literal: str, session: str, use: str) -> Case:
    """Return a case in which a row gets a literal as a default: of an added column, of a new table, or by SET DEFAULT.
    Minimal row images leave defaults out.
    """
    insert = "SET binlog_row_image=MINIMAL", "INSERT INTO NAME (id) VALUES (1)", "SET binlog_row_image=FULL"
    if use == "add":
        created = "CREATE TABLE NAME (id INT PRIMARY KEY)"
        return Case(
            session, (created, "INSERT INTO NAME VALUES (1)"), f"ALTER TABLE NAME ADD COLUMN c {kind} DEFAULT {literal}"
        )
    if use == "create":
        return Case(session, (), f"CREATE TABLE NAME (id INT PRIMARY KEY, c {kind} DEFAULT {literal})", insert)
    created = f"CREATE TABLE NAME (id INT PRIMARY KEY, c {kind})"
    return Case(session, (created,), f"ALTER TABLE NAME ALTER COLUMN c SET DEFAULT {literal}", insert)


def literal_cases(count: int, seed: int = _SAMPLE) -> list[Case]:
    """Return different cases of literals, most in plain or strict sessions, drawn by a seed."""
    draw = random.Random(seed)
    made: dict[Case, None] = {}
    names = [*SESSIONS, *["plain"] * 6, *["strict"] * 6]
    while len(made) < count:
        session = draw.choice(names)
        literal = draw.choice(LITERALS)
        try:
            literal.encode(CODECS.get(session, "utf-8"))
        except UnicodeEncodeError:
            continue
        made[literal_case(draw.choice(TYPES), literal, session, draw.choice(USES))] = None
    return list(made)


# Columns, values of rows, and types to which the column is changed.
CHANGES: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("TINYINT", "SMALLINT UNSIGNED", "MEDIUMINT", "INT", "INT UNSIGNED", "BIGINT", "BIGINT UNSIGNED"),
        ("0", "1", "5", "99", "127", "200", "1901", "2155", "40000", "-1", "-128", "100000000", "NULL"),
        (
            *("TINYINT", "SMALLINT", "SMALLINT UNSIGNED", "MEDIUMINT", "MEDIUMINT UNSIGNED", "INT", "INT UNSIGNED"),
            *("BIGINT", "BIGINT UNSIGNED", "YEAR", "BIT(8)", "SET('a','b')", "DECIMAL(5,2)", "DOUBLE", "INT NOT NULL"),
            *("INT(3) ZEROFILL", "VARCHAR(20)", "INT DEFAULT 7", "INT COMMENT 'x'", "INT AUTO_INCREMENT UNIQUE"),
            *("BIGINT NOT NULL DEFAULT 3", "TINYINT(1)", "ENUM('1','5')"),
        ),
    ),
    (
        ("YEAR", "BIT(8)", "SET('a','b','c')", "BIT(64)"),
        ("0", "1", "2", "7", "NULL"),
        (
            *(
                "YEAR",
                "SMALLINT UNSIGNED",
                "BIGINT UNSIGNED",
                "BIT(4)",
                "BIT(16)",
                "SET('a','b','c')",
                "SET('b','a','c')",
            ),
            *("SET('a','b')", "SET('a','b','c','d')", "SET('A','b','c') NOT NULL", "INT"),
        ),
    ),
    (
        ("DECIMAL(6,3)", "DECIMAL(6,3) UNSIGNED", "DECIMAL(8,3)"),
        ("0", "1.5", "1.239", "999.999", "-1.005", "NULL"),
        (
            *("DECIMAL(6,3)", "DECIMAL(6,2)", "DECIMAL(5,3)", "DECIMAL(8,3)", "DECIMAL(6,3) UNSIGNED", "DECIMAL(38,3)"),
            *("DOUBLE", "INT", "DECIMAL(8,3) NOT NULL", "DECIMAL(6,3) DEFAULT 1.25"),
        ),
    ),
    (
        ("FLOAT", "DOUBLE", "FLOAT(7,3)", "DOUBLE(9,4)"),
        ("0", "1.5", "0.15", "-0.55", "1.239", "123456.7", "-1e10", "1e-5", "NULL"),
        (
            *("FLOAT", "DOUBLE", "FLOAT(5,1)", "DOUBLE(5,1)", "FLOAT(7,3)", "DOUBLE(12,4)", "FLOAT UNSIGNED"),
            *("DOUBLE UNSIGNED", "DOUBLE NOT NULL", "DECIMAL(10,2)", "FLOAT(30)", "REAL"),
        ),
    ),
    (
        ("DATETIME(6)", "DATETIME(3)", "DATETIME", "TIMESTAMP(6) NULL", "TIMESTAMP NULL"),
        ("'2024-01-01 00:00:01'", "'2024-01-01 00:00:01.9'", "'2024-01-01 00:00:01.25'", "NULL"),
        (
            *("DATETIME", "DATETIME(1)", "DATETIME(3)", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP(6) NULL"),
            *("TIMESTAMP", "DATETIME(6) NOT NULL", "DATETIME DEFAULT CURRENT_TIMESTAMP", "DATE", "TIME(6)"),
            *("DATETIME(6) DEFAULT '2020-01-01'", "TIMESTAMP(6) NULL DEFAULT '2020-01-01 00:00:00'"),
        ),
    ),
    (
        ("TIME(6)", "TIME", "DATE"),
        ("'10:11:12'", "'10:11:12.5'", "'2024-02-29'", "NULL"),
        ("TIME", "TIME(3)", "TIME(6)", "DATE", "DATETIME", "TIME NOT NULL", "DATE DEFAULT '2020-02-02'"),
    ),
    (
        ("CHAR(5)", "VARCHAR(5)", "VARCHAR(20) CHARSET latin1", "TINYTEXT", "TEXT", "VARCHAR(20)"),
        ("''", "'a'", "'a '", "'ab'", "'ü'", "'5'", "REPEAT('x',5)", "NULL"),
        (
            *("CHAR(3)", "CHAR(5)", "CHAR(9)", "VARCHAR(3)", "VARCHAR(5)", "VARCHAR(300)", "TINYTEXT", "TEXT"),
            *("VARCHAR(20) CHARSET latin1", "VARCHAR(20) CHARSET utf8mb4", "VARCHAR(20) CHARSET ascii", "LONGTEXT"),
            *("VARCHAR(20) NOT NULL", "VARBINARY(20)", "ENUM('a','ab')", "INT", "VARCHAR(20) COLLATE utf8mb4_bin"),
            *("VARCHAR(20) DEFAULT 'd'", "VARCHAR(20) CHARSET cp1251", "TEXT CHARSET latin1", "JSON"),
        ),
    ),
    (
        ("TEXT", "LONGTEXT", "VARCHAR(999)", "VARCHAR(200) CHARSET utf8mb4", "TEXT CHARSET utf8mb4"),
        ("REPEAT('x',300)", "REPEAT('ü',200)", "'😀'", "'ж'"),
        (
            "TINYTEXT",
            "TEXT",
            "VARCHAR(300)",
            "VARCHAR(2000)",
            "TEXT CHARSET latin1",
            "TEXT CHARSET utf8mb3",
            "MEDIUMTEXT",
        ),
    ),
    (
        ("BINARY(4)", "VARBINARY(4)", "TINYBLOB", "BLOB"),
        ("''", "'a'", "x'00ff'", "'abcd'", "NULL"),
        (
            *("BINARY(2)", "BINARY(4)", "BINARY(8)", "VARBINARY(2)", "VARBINARY(9)", "BLOB", "TINYBLOB", "CHAR(4)"),
            *("TEXT", "VARBINARY(4) NOT NULL", "LONGBLOB", "POINT"),
        ),
    ),
    (
        ("ENUM('x','y','z')", "ENUM('x','y')"),
        ("'x'", "'y'", "NULL"),
        (
            *("ENUM('x','y','z')", "ENUM('y','x')", "ENUM('x','y','z','w')", "ENUM('x','y') NOT NULL", "VARCHAR(9)"),
            *("ENUM('X','Y')", "SET('x','y')", "INT", "ENUM('x','y','z') DEFAULT 'y'", "ENUM('x')"),
        ),
    ),
)
_CHANGE_SESSIONS = ("plain", "plain", "strict", "strict", "west", "rounding", "latin1", "old")
_CHARSETS = ("utf8mb4", "utf8mb4", "utf8mb4", "latin1")


def change_cases(count: int, seed: int = _SAMPLE) -> list[Case]:
    """Return different cases of MODIFY and CHANGE, drawn by a seed."""
    draw = random.Random(seed)
    made: dict[Case, None] = {}
    while len(made) < count:
        kinds, values, targets = draw.choice(CHANGES)
        kind, target = draw.choice(kinds), draw.choice(targets)
        rows = draw.sample(values, draw.choice([1, 1, 2, 3]))
        before = [f"CREATE TABLE NAME (id INT PRIMARY KEY, c {kind}) CHARSET {draw.choice(_CHARSETS)}"]
        before += [f"INSERT IGNORE INTO NAME VALUES ({number},{value})" for number, value in enumerate(rows, 1)]
        verb = draw.choice(["MODIFY c", "MODIFY COLUMN c", "CHANGE c c", "ENGINE=InnoDB, MODIFY c"])
        made[Case(draw.choice(_CHANGE_SESSIONS), tuple(before), f"ALTER TABLE NAME {verb} {target}")] = None
    return list(made)
