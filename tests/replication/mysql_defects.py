"""`python -m tests.replication.mysql_defects NAME`: take one check of the MySQL port away and run the tests of hostile
clients that must find it. Exit code 0 and one line if they did, 1 if not. The line is changed while the module is
imported; no file is touched.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tests.planting import plant_line

_ROOM = "tidemark.replication.mysql_source"
_TESTS = "tests/replication/test_mysql_hostile.py"


@dataclass(frozen=True)
class Defect:
    """One changed place. test: what finds it."""

    name: str
    module: str
    old: str
    new: str
    test: str


DEFECTS = (
    Defect(
        "a message has no limit",
        f"{_ROOM}.packets",
        "if len(self._message) + length > self.limit_bytes:",
        "if False:",
        "test_messages_in_pieces_take_no_more_than_the_limit",
    ),
    Defect(
        "packets come in any order",
        f"{_ROOM}.packets",
        "if self._bytes[3] != self.sequence:",
        "if False:",
        "test_headers_that_lie_end_the_connection_or_are_waited_for",
    ),
    Defect(
        "a field may be longer than its message",
        f"{_ROOM}.packets",
        "if count > self.left:",
        "if False:",
        "test_command_that_is_shorter_than_its_fields_is_malformed_and_begins_no_dump",
    ),
    Defect(
        "any proof is a proof",
        f"{_ROOM}.login",
        "if not is_proved(port.flavor.plugin, user, port.stranger, self._nonce, proof):",
        "if user is None:",
        "test_refused_login_is_answered_by_nothing_more",
    ),
    Defect(
        "a conversation goes on after what cannot be read",
        f"{_ROOM}.conversation",
        "self.is_over, self._sequence = True, 1",
        "self._sequence = 1",
        "test_what_cannot_be_read_ends_a_conversation",
    ),
    Defect(
        "a client that leaves keeps its snapshot",
        f"{_ROOM}.conversation",
        "            self.dump.close()\n        self.session.close()\n",
        "            self.dump.close()\n",
        "test_conversation_cut_at_every_byte_is_answered_up_to_there_and_leaves_nothing",
    ),
    Defect(
        "a client that leaves keeps files from purge",
        f"{_ROOM}.dump",
        "        self._binlog.close()\n",
        "",
        "test_conversation_cut_at_every_byte_is_answered_up_to_there_and_leaves_nothing",
    ),
    Defect(
        "variables take any memory",
        f"{_ROOM}.session",
        "if taken > VARIABLES_BYTES_MAX:",
        "if False:",
        "test_many_variables_take_no_more_time_each_than_few",
    ),
    Defect(
        "an ack may name what was not sent",
        f"{_ROOM}.acks",
        "if not (0, 0) < place <= self._newest:",
        "if False:",
        "test_ack_of_what_was_not_sent_ends_the_dump",
    ),
)


def main(name: str) -> int:
    """See the module."""
    defect = next(each for each in DEFECTS if each.name == name)
    plant_line(defect.module, defect.old, defect.new)
    import pytest

    code = pytest.main(["-q", "-x", "-p", "no:benchmark", "-p", "no:cacheprovider", f"{_TESTS}::{defect.test}"])
    is_found = code == pytest.ExitCode.TESTS_FAILED
    print(f"{name}: {'found' if is_found else 'MISSED'}")
    return 0 if is_found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
