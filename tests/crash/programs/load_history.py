"""The built-in program with bulk loads: rows written into load files, published, and adopted by reference.

As `history` (or `disk_history`), and about every third transaction is a load of some dozen rows, by one task or two.
Some loads are aborted instead, before or after they are published, and some are refused because a key exists. Files
stay through local checkpoints and restarts as long as the log refers to them.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.crash.programs.disk_history import DiskHistory
from tests.crash.programs.history import MAIN, History, Model, Row, program
from tidemark.engine.base.errors import LoadRefused
from tidemark.engine.log.load_files import FOLDER
from tidemark.engine.rows.column_input import to_columns
from tidemark.recovery.crash_harness.program import OpenStore
from tidemark.recovery.load.commit import abort, publish
from tidemark.recovery.load.directory import Directory
from tidemark.recovery.load.job import FragmentReport, LoadJob
from tidemark.recovery.load.tasks import write_parts

UNDO_LOG = "4 MiB"
LOADED = (5, 40)  # rows


class LoadHistory(History):
    """A run of the program; `loads` counts the outcomes of loads: adopted, refused, aborted."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.loads = [0, 0, 0]

    def commit(self) -> None:
        """One transaction, or a load at times."""
        if self.rng.random() < 0.35 and MAIN in self.model:
            self.commit_load()
        else:
            super().commit()

    def commit_load(self) -> None:
        """One load. If too few keys are free, rows of older loads are deleted instead."""
        rows = self.model[MAIN]
        free = [key for key in range(2 * self.keys) if key not in rows]
        count = self.rng.randrange(*LOADED)
        if len(free) < count:
            self.clear()
            return
        made = [self.row(key) for key in self.rng.sample(free, count)]
        fate = self.rng.random()
        if fate < 0.15 and rows:
            made.append(self.row(self.rng.choice(sorted(rows))))
        place = Directory(self.db.parts.files, FOLDER)
        job = self.db.plan_load(MAIN)
        reports = self.written(job, made, place)
        if 0.15 <= fate < 0.25:
            abort(job, place=place)
            self.loads[2] += 1
            return
        publish(job, reports, place)
        if 0.25 <= fate < 0.35:
            abort(job, True, place)
            self.loads[2] += 1
            return
        self.adopt(job, made, place)

    def adopt(self, job: LoadJob, made: list[Row], place: Directory) -> None:
        """Adopt a load; one with a key that is there is refused."""
        after: Model = {**self.model, MAIN: {**self.model[MAIN], **{row[0]: row for row in made}}}
        if any(row[0] in self.model[MAIN] for row in made):
            try:
                self.db.adopt(job)
            except LoadRefused:
                abort(job, True, place)
                self.loads[1] += 1
            return
        line = self.begin(after)
        self.db.adopt(job)
        self.loads[0] += 1
        self.done(after, line, True)

    def written(self, job: LoadJob, made: list[Row], place: Directory) -> list[FragmentReport]:
        """What one task or two write."""
        parts = self.rng.randrange(1, 3)
        reports: list[FragmentReport] = []
        for part in range(parts):
            batches = [batch.columns for batch in to_columns(made[part::parts], job.definition)]
            reports += write_parts(job, 0, batches, part, place)
        return reports

    def clear(self) -> None:
        """Delete the rows that only loads make."""
        keys = [key for key in self.model[MAIN] if key >= self.keys]
        after = {**self.model, MAIN: {key: row for key, row in self.model[MAIN].items() if key < self.keys}}
        with self.db.transaction() as txn:
            for key in keys:
                txn.delete(MAIN, key)
            line = self.begin(after)
        self.done(after, line, self.waits_for_disk)


class DiskLoadHistory(LoadHistory, DiskHistory):
    """The same over disk columns."""

    def __init__(self, open_store: OpenStore, *arguments: Any, **options: Any) -> None:
        super().__init__(functools.partial(open_store, undo_log=UNDO_LOG), *arguments, **options)


# The program, for crash states: 40 steps.
work = program(LoadHistory, 40)
# The program with commits that do not wait for the disk: durable with their epoch, promised by `sync`.
epoch_work = program(LoadHistory, 40, durability="epoch")
# The program over disk columns, for crash states: 30 steps.
disk_work = program(DiskLoadHistory, 30)
# The program, for a look at every point in seconds: 12 steps, two of them local checkpoints.
tiny_work = program(LoadHistory, 12, lcp_every=5)
# The program over disk columns, for a look at every point in seconds: 12 steps, two of them local checkpoints.
tiny_disk_work = program(DiskLoadHistory, 12, lcp_every=5)
