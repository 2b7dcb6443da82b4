"""From SQLite: every table of a file, with types, keys, numbers and indexes, and a proof that no value was lost.

    python docs/examples/from_sqlite.py

The source is made by this program: a file as years of use leave it.
"""

import sqlite3
import tempfile
from datetime import date
from decimal import Decimal

import tidemark as tm

SCHEMA = """
create table artist (id integer primary key, name varchar(40) not null unique);
create table album (id integer primary key autoincrement, artist integer not null references artist, title text,
    released date, price decimal(8, 2) not null default 9.99, cover blob);
create index by_artist on album (artist, released);
create table sale (album integer, day date, copies integer not null, primary key (album, day));
create table note (text text);
"""


def fill(old):
    old.executescript(SCHEMA)
    old.executemany("insert into artist values (?, ?)", [(n, f"artist {n}") for n in range(1, 101)])
    columns = "artist, title, released, price, cover"
    for n in range(5_000):
        released = f"{1970 + n % 50}-05-17" if n % 7 else None
        album = (n % 100 + 1, f"album {n}", released, n % 1_000 / 100, bytes([n % 256]) * 9)
        old.execute(f"insert into album ({columns}) values (?, ?, ?, ?, ?)", album)
    sales = [(n % 5_000 + 1, f"2026-{n // 5_000 + 1:02}-01", n % 13) for n in range(60_000)]
    old.executemany("insert into sale values (?, ?, ?)", sales)
    old.execute("delete from album where id = 5000")
    old.execute("update album set released = 'spring 1999' where id = 3")  # SQLite takes it
    old.executemany("insert into note values (?)", [("no key",), ("nor here",)])
    old.commit()


def main(folder):
    old = sqlite3.connect(f"{folder}/music.db")
    fill(old)
    with tm.open(f"{folder}/music", redo_log="64 MiB") as db:
        try:
            db.load_sqlite(f"{folder}/music.db")
        except tm.TypeMismatch as error:
            print(error)
        assert db.tables() == []
        old.execute("update album set released = '1999-04-01' where id = 3")
        old.commit()
        report = db.load_sqlite(f"{folder}/music.db")
        for table in report["tables"]:
            indexes = [index["name"] for index in table["indexes"]]
            print(f"{table['table']}: {table['rows']} rows, key {table['primary_key']}, indexes {indexes}")
        assert report["bad"] == [] and report["skipped"] == {}

        # SQLite adds decimals up as floats. Sums of Tidemark are exact.
        albums, sales = db["album"], db["sale"]
        assert (albums.count(), round(float(albums.sum("price")), 2)) == old.execute(
            "select count(*), round(sum(price), 2) from album"
        ).fetchone()
        copies = [(row.album, row.n) for row in sales.aggregate(by="album", n=("sum", "copies"))]
        assert copies == old.execute("select album, sum(copies) from sale group by album order by album").fetchall()
        print(f"{sum(n for _, n in copies)} copies, and the albums cost {albums.sum('price')} together")
        assert albums[3].released == date(1999, 4, 1) and albums[7].price == Decimal("0.06")

        # The program continues, with the same defaults and the same refusals.
        new = albums.insert({"artist": 7, "title": "the first one here"})
        print(f"the next album has the number {new} and costs {albums[new].price}")
        assert new == 5_001 and db["note"].insert({"text": "its key is SQLite's rowid"}) == 3
        assert db["artist"].get("artist 9", index="unique_name").id == 9


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
