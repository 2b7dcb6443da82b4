"""The store as its users see it: programs, histories and groups by seed, through the public API and nothing else.

*Programs* (`programs`, `judge`). A program is a list of plain tuples: schema changes with rows in the table, changes of
rows, transactions with savepoints, loads, reads, snapshots, and lives of the store (restart, kill, checkpoint, backup
with its restore). `programs.make(seed, length)` draws each step by the weights of `WEIGHTS`, over the model alone, so
that most steps do something and some must be refused. `judge.run(steps)` carries them out on a store and on the model.

- *Model* (`model`, `schema`, `kinds`, `expressions`): dictionaries of tuples, Python values. It imports nothing of the
  store. It says what a call returns, or by which class of error it is refused (`Refused`); where the documents say
  nothing it raises `Unsure`, and the step is left out. So a program stays a program when steps are taken out of it.
- *Doors* (`doors`, `forms`, `odd`): a change enters by a handle, a typed table, a transaction, a client over TCP,
  asyncio; its rows as Python rows or columns, Arrow, pandas, polars, NumPy, CSV, Parquet; its values also as scalars of
  NumPy and pandas. Rows are read in nine ways. A kill is exact: with `background=False` nothing runs between two steps,
  so a copy of the files is what SIGKILL leaves.
- *Judge*: the result or error of each call, the touched tables after each step, all tables, counts, partitions and
  indexes every few steps, and everything after the program and after a restart. What SQL can say is also asked of
  SQLite (`sqlite`). Every chain of backups is restored at once and compared.
- *Minimiser* (`minimise`): delta debugging of the steps, then of the rows and steps within them. What is left is
  printed as a program to run, and as a seed with the numbers of the kept steps.

*Histories* (`histories`, `anomalies`, `killed`). Concurrent clients append to lists and read them in transactions, move
money, and write one number into all rows of a table; threads, clients over TCP of a process that is killed, clients of
a node group whose processes are killed. Some transactions read and write without locks, with a view of their own. The
record is checked for G0, G1a, G1b, G1c, OTV, G-single (of those), torn scans, half commits, stale and non-monotonic
reads, reads that a kill takes back, and for lost and resurrected writes.

*Groups* (`groups`). Commands of three nodes are killed, stopped, started again without their directory or with a disk
that hangs, and clients hang in transactions, in random order. Acknowledged writes must stay, one group alone
acknowledges, and clients get an answer in time.

`python -m tests.blackbox programs | histories | groups --seed S ...` runs any number of them. `defects` puts faults
back one by one; each must be found within a stated number of programs. `calls` lists the public calls that no program
makes; `make check` prints them.
"""
