"""`python -m tests.fuzz NAME --seed S --inputs N`: fuzz one reader, or all of them; `--list` names them.

Prints how many inputs came to what, and each finding with an input that is as small as could be made; the exit code is
1 if there are any. `--keep` puts these inputs into the corpus, where every later run has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.fuzz.harness import Report, Run, keep
from tests.fuzz.readers import readers

LABELS_SHOWN = 12
SHOWN_BYTES = 400


def reported(report: Report, shown: int) -> list[str]:
    """A report in lines."""
    rate = report.inputs / report.cpu_seconds if report.cpu_seconds else 0
    lines = [
        f"{report.reader}, seed {report.seed}: {report.inputs:,} inputs, {len(report.findings)} findings,"
        f" {report.outcomes['accepted']:,} accepted; {rate:,.0f} inputs a second of a core,"
        f" {report.memory_bytes >> 20} MiB"
    ]
    lines += [f"  {count:9,}  {label}" for label, count in report.outcomes.most_common(shown)]
    for each in report.findings:
        lines.append(f"FINDING at input {each.number}: {each.what} ({each.where})")
        lines.append(f"  {len(each.data)} bytes: {each.data[:SHOWN_BYTES]!r}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="of a reader, or a part of names; all of them if left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each reader; divided by what its inputs cost")
    parser.add_argument("--keep", action="store_true", help="put inputs of findings into tests/fuzz/corpus")
    parser.add_argument("--labels", type=int, default=LABELS_SHOWN, help="outcomes shown of each reader")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    asked = parser.parse_args(arguments)
    chosen = [each for each in readers().values() if asked.name in each.name]
    if asked.list:
        print("\n".join(each.name for each in chosen))
        return 0
    if not chosen or asked.seed < 0:
        parser.error(f"no reader has {asked.name!r} in its name" if not chosen else "a seed is 0 or more")
    found = inputs = 0
    for reader in chosen:
        report = Run(reader, asked.seed).run(max(1, asked.inputs // reader.cost))
        print("\n".join(reported(report, asked.labels)), flush=True)
        missing = report.missing(reader.reached)
        if missing:
            print(f"not reached: {', '.join(missing)}", flush=True)
        if asked.keep:
            for each in report.findings:
                print(f"kept as {keep(each)}")
        found += len(report.findings)
        inputs += report.inputs
    if len(chosen) > 1:  # in other words than those above, which a soak adds up
        print(f"{len(chosen)} readers were given {inputs:,}, of which {found} were too much")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
