"""A reader that refreshes while a writer changes rows and makes local checkpoints all the time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.store.read_only import NAME
from tests.store.support import ACCOUNT, SMALL
from tests.store.trouble import dump

ROOT = Path(__file__).resolve().parents[2]
ACCOUNTS, REFRESHES, VIEWS = 40, 200, 60
TRANSFERS = """
import random, sys
import tidemark as tm
rng = random.Random(int(sys.argv[2]))
with tm.open(sys.argv[1], data_memory="16 MiB", redo_log="8 MiB", durability="epoch") as db:
    accounts = db.create_table("test.account", [tm.Column("id", tm.Int64), tm.Column("balance", tm.Int64),
                                                tm.Column("note", tm.VarChar(2000))], "id")
    accounts.insert_many([(key, 1000, "") for key in range(40)])
    db.checkpoint()
    print("ready", flush=True)

    def transfer(*_):
        with db.transaction() as txn:
            one, two = rng.sample(range(40), 2)
            amount = rng.randrange(50)
            for key, change in ((one, -amount), (two, amount)):
                row = txn.get("test.account", key, lock="exclusive")
                if rng.random() < 0.2:
                    txn.delete("test.account", key)
                    txn.insert("test.account", (key, row.balance + change, row.note))
                else:
                    txn.update("test.account", key, {"balance": row.balance + change, "note": "n" * rng.randrange(999)})

    while True:
        for _ in range(5):
            transfer()
        db.checkpoint(transfer)
"""


def check_transfers(view: tm.ReadOnlyDatabase, accounts: Any) -> None:
    rows = accounts.to_arrow(["id", "balance", tm.EPOCH]).to_pydict()
    assert sum(rows["balance"]) == ACCOUNTS * 1_000
    assert sorted(rows["id"]) == list(range(ACCOUNTS)) and len(accounts) == ACCOUNTS
    assert max(rows["$EPOCH"]) <= view.epoch
    assert all(accounts[key].balance == balance for key, balance in zip(rows["id"], rows["balance"], strict=True))


def test_reader_refreshing_during_writes_of_a_process_sees_one_point_in_time_each_time(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    process = subprocess.Popen(
        [sys.executable, "-c", TRANSFERS, str(tmp_path / "bank"), str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with tm.open(tmp_path / "bank", read_only=True, data_memory="16 MiB") as view:
            accounts = view[NAME]
            seen = [view.epoch]
            while len(seen) <= REFRESHES or len(set(seen)) < VIEWS:
                held = iter(accounts)
                first = next(held)
                seen.append(view.refresh())
                check_transfers(view, accounts)
                assert view.status()["lcp"]["fallbacks"] == 0, "what the writer retires is not damaged"
                assert first.balance + sum(row.balance for row in held) == ACCOUNTS * 1_000
            assert seen == sorted(seen), "never back"
            assert process.poll() is None, "the writer did not notice"
            process.send_signal(signal.SIGKILL)
            process.wait()
            last = view.refresh()
            check_transfers(view, accounts)
            # Opening recovers the log after that local checkpoint; the view stays where it is.
            with tm.open(tmp_path / "bank", data_memory="16 MiB", background=False) as db:
                assert sum(db[NAME].to_arrow(["balance"]).to_pydict()["balance"]) == ACCOUNTS * 1_000
                assert view.epoch == last
                report = db.checkpoint()
                assert view.refresh() == report["epoch"] > last
                assert dump(view) == dump(db)
    finally:
        process.kill()
        process.communicate()


def test_threads_of_one_process_write_refresh_and_read(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    is_over = threading.Event()

    def repeat(work: Callable[[], Any]) -> None:
        while not is_over.is_set():
            work()

    # A full log is waited for: on a busy machine the local checkpoints come late.
    options = {**SMALL, "redo_log": "16 MiB", "durability": "epoch", "lock_timeout_ms": 200_000}
    with tm.open(tmp_path / "shop", **options) as db:
        db.create_table(NAME, ACCOUNT, "id").insert_many([(key, "", 100.0, None) for key in range(ACCOUNTS)])
        db.checkpoint()

        def transfer() -> None:
            with db.transaction() as txn:
                one, two = rng.sample(range(ACCOUNTS), 2)
                for key, change in ((one, -1.0), (two, 1.0)):
                    txn.update(NAME, key, {"balance": txn.get(NAME, key).balance + change, "note": "n" * key})

        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view:
            accounts = view[NAME]

            def read() -> None:
                with view.transaction() as txn:
                    one = sum(row.balance for row in txn.scan(NAME))
                    two = sum(txn.get(NAME, key).balance for key in range(ACCOUNTS))
                assert one == two == sum(accounts.to_numpy()["balance"]) == ACCOUNTS * 100.0

            with ThreadPoolExecutor(4) as pool:
                works = [pool.submit(repeat, each) for each in (transfer, db.checkpoint, read, view.refresh)]
                try:
                    for _ in range(REFRESHES):
                        view.refresh()
                        assert not any(each.done() for each in works), "one of them raised"
                finally:
                    is_over.set()
            for each in works:
                each.result()
            db.checkpoint()
            view.refresh()
            assert dump(view) == dump(db)
