"""SQL over a table by DuckDB, which reads it through `__arrow_c_stream__`."""

from __future__ import annotations

import pytest

import tidemark as tm

duckdb = pytest.importorskip("duckdb")
pytestmark = pytest.mark.usefixtures("storage")

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(40), nullable=True),
    tm.Column("balance", tm.Decimal(18, 2)),
    tm.Column("kind", tm.Enum("free", "paid")),
]


def filled(db: tm.Database) -> tm.TableHandle:
    table = db.create_table("test.account", COLUMNS, "id")
    owners = [None, "ann", "bob", "cy"]
    table.insert_many([(key, owners[key % 4], key, "free" if key % 3 else "paid") for key in range(3_000)])
    return table


def test_sql_over_a_table_or_a_scan_reads_it_as_it_is_then(db: tm.Database) -> None:
    accounts_arrow = filled(db)
    query = "select owner, sum(balance), count(*) from accounts_arrow where kind = 'paid' group by owner order by owner"
    expected = [
        (owner, sum(range(rest, 3_000, 12)), 250) for owner, rest in (("ann", 9), ("bob", 6), ("cy", 3), (None, 0))
    ]
    assert duckdb.sql(query).fetchall() == expected
    accounts_arrow.delete(9)
    assert duckdb.sql(query).fetchall()[0] == ("ann", expected[0][1] - 9, 249)
    few = accounts_arrow.scan(["id", "owner"], where=tm.col("id") < 10)
    assert few.schema().names == ["id", "owner"]
    assert duckdb.sql("select count(*), max(owner) from few").fetchall() == [(9, "cy")]
    assert duckdb.sql("select id from few where owner is null order by id desc").fetchall() == [(8,), (4,), (0,)]
    with db.transaction() as txn:
        txn.update("test.account", 1, {"owner": "zoe"})
        scan = txn.scan("test.account")
        mine = scan.to_arrow()  # the transaction belongs to this thread, and DuckDB reads in its own
        assert mine.num_rows == 2_999
        assert duckdb.sql("select owner from mine where id = 1").fetchall() == [("zoe",)]
        assert duckdb.sql("select owner from accounts_arrow where id = 1").fetchall() == [("ann",)]


def test_error_of_a_condition_reaches_the_reader_of_the_stream(db: tm.Database) -> None:
    failing = filled(db).scan(where=tm.col("id") * (2**62) > 0)
    assert failing.schema().names == ["id", "owner", "balance", "kind"]
    with pytest.raises(Exception, match="test.account"):
        duckdb.sql("select count(*) from failing").fetchall()
