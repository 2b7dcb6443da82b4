"""DDL of a real server, read without it: every column ends as it did there, or the ingest stops with a typed error.

Story: a user followed a MariaDB whose tables got new columns with defaults and other types. `TINYINT(1) DEFAULT 2` came
as 1, a DATETIME kept fractions that the server had cut off, a SET kept the bits of its old order: all in silence.
"""

from __future__ import annotations

import pytest

from tests.ingest.rig import Source
from tests.ingest.served import differences, saved, serve
from tests.ingest.served_cases import change_cases, literal_cases
from tests.seeds import fresh_seeds

_LEAST_LITERALS, _LEAST_CHANGES = 500, 200


def test_kept_table_of_a_server_ends_equal_or_stops() -> None:
    served = saved()
    accepted = [served.cases[number].change for number in served.values]
    changes = sum(" MODIFY " in each or " CHANGE " in each for each in accepted)
    assert len(accepted) - changes >= _LEAST_LITERALS and changes >= _LEAST_CHANGES
    wrong, counts = differences(served)
    assert wrong == [], counts
    assert counts["equal"] >= counts.total() * 0.45, "what is usual is replicated"


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_new_cases_at_a_server_end_equal_or_stop(source: Source, seed: int) -> None:
    wrong, counts = differences(serve(source, [*literal_cases(60, seed), *change_cases(40, seed)]))
    assert wrong == [], counts
