"""A job queue: workers in processes of their own take jobs from one table, and some of them are killed.

    python docs/examples/job_queue.py

A worker takes the next job that no other worker has: `skip_locked` leaves out rows whose lock is held. It does the job
and deletes it in one transaction. If it is killed, its transaction rolls back, and the job is in the queue again.
"""

import os
import secrets
import subprocess
import sys
import tempfile

import tidemark as tm

JOBS, STALLED = 100, 3
JOB, RESULT = "queue.job", "queue.result"


def take(db: tm.RemoteDatabase, stalls: bool) -> bool:
    """Do one job; return False if there is none that is free."""
    with db.transaction() as txn:
        free = txn.scan(JOB, index="by_due", limit=1, lock="exclusive", skip_locked=True)
        job = next(free, None)
        if job is None:
            return False
        txn.insert(RESULT, (job.id, job.number**2))
        txn.delete(JOB, job.id)
        if stalls:
            print(job.id, flush=True)
            sys.stdin.read()  # until it is killed
    return True  # the job is deleted, and its result is on disk


def work(address: str, stalls: bool) -> None:
    """Do jobs until none is free; print how many."""
    done = 0
    with tm.connect([address], bytes.fromhex(os.environ["QUEUE_SECRET"])) as db:
        while take(db, stalls):
            done += 1
    print(done)


def main(folder: str) -> None:
    secret = secrets.token_bytes(32)
    environment = {**os.environ, "QUEUE_SECRET": secret.hex()}
    with tm.open(f"{folder}/queue", redo_log="16 MiB") as db, tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
        db.create_table(JOB, [tm.Column(name, tm.Int64) for name in ("id", "number", "due")], "id")
        db.create_table(RESULT, [tm.Column(name, tm.Int64) for name in ("id", "square")], "id")
        db.create_index(JOB, "by_due", "due")  # the order in which jobs are taken
        db[JOB].insert_many([(number, number, number) for number in range(1, JOBS + 1)])

        def worker(*how: str) -> subprocess.Popen[str]:
            command, pipe = [sys.executable, __file__, "{}:{}".format(*serving.address), *how], subprocess.PIPE
            return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

        slow = [worker("stalls") for _ in range(STALLED)]
        taken = sorted(int(each.stdout.readline()) for each in slow)
        print(f"{STALLED} workers have taken jobs {taken} and stall")
        done = sum(int(each.communicate()[0]) for each in [worker(), worker()])
        print(f"2 other workers have done {done} jobs; left: {sorted(row.id for row in db[JOB])}")
        for each in slow:
            each.kill()
            each.communicate()  # until it has ended
        # Waits until their transactions have rolled back.
        db.run(lambda txn: [txn.get(JOB, job, lock="exclusive") for job in taken])
        print(f"the {STALLED} workers are killed; results: {len(db[RESULT])}")
        print(f"one more worker has done {worker().communicate()[0].strip()} jobs")
        assert {row.id: row.square for row in db[RESULT]} == {number: number**2 for number in range(1, JOBS + 1)}
        print(f"results: {len(db[RESULT])}, jobs left: {len(db[JOB])}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], stalls="stalls" in sys.argv)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
