"""Two processes and a kill: a client writes while the process with the store is killed and started again.

    python docs/examples/killed_writer.py

No call of the client fails: it waits until the store is there again. What a call has acknowledged survives, once.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading

import tidemark as tm

WRITERS, EACH, KILLS = 4, 150, 2


def serve(folder, address):
    """The process with the store."""
    with tm.open(folder, redo_log="16 MiB") as db:
        columns = [tm.Column("id", tm.Int64, default=tm.autoincrement), tm.Column("writer", tm.Int64)]
        db.create_table("entry", [*columns, tm.Column("number", tm.Int64)], "id", exist_ok=True)
        db.create_table("total", [tm.Column("writer", tm.Int64), tm.Column("n", tm.Int64)], "writer", exist_ok=True)
        with tm.serve_calls(db, address, bytes.fromhex(os.environ["SECRET"])) as serving:
            print("{}:{}".format(*serving.address), flush=True)
            signal.pause()  # until it is killed


def start(folder, address):
    process = subprocess.Popen([sys.executable, __file__, folder, address], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def add(txn, writer, number):
    """Two tables in one transaction: an entry, and the count of entries."""
    txn.upsert("total", (writer, 1), set={"n": tm.col("n") + 1})
    return txn.insert("entry", {"writer": writer, "number": number})


def write(remote, writer, acknowledged, reached):
    for number in range(EACH):
        key = remote.run(lambda txn, number=number: add(txn, writer, number))
        acknowledged[key] = (writer, number)  # it is on disk, and no kill takes it back
        reached.release()


def main(folder):
    os.environ["SECRET"] = secrets.token_hex(32)
    process, address = start(folder, "127.0.0.1:0")
    acknowledged, reached = {}, threading.Semaphore(0)
    with tm.connect(address, bytes.fromhex(os.environ["SECRET"]), timeout_ms=60_000) as remote:
        writers = [threading.Thread(target=write, args=(remote, n, acknowledged, reached)) for n in range(WRITERS)]
        for each in writers:
            each.start()
        for _ in range(KILLS):
            for _ in range(WRITERS * EACH // (KILLS + 1)):
                assert reached.acquire(timeout=60)
            process.kill()  # SIGKILL
            process.communicate()
            process, _ = start(folder, address)
        for each in writers:
            each.join()
        rows = {row.id: (row.writer, row.number) for row in remote["entry"]}
        totals = {row.writer: row.n for row in remote["total"]}
        print(f"killed {KILLS} times, {len(acknowledged)} transactions acknowledged, {len(rows)} entries found")
        assert rows == acknowledged and totals == dict.fromkeys(range(WRITERS), EACH)
    process.kill()
    process.communicate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(f"{temporary}/store")
