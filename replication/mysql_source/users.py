"""Users of the MySQL port, and the proofs that their clients give of knowing a secret.

A proof is computed from the secret and the nonce of the connection, so that an earlier proof is worth nothing. An
unknown name is compared with random bytes, in the same time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.mysql_source import protocol_layout as p

NAME_BYTES_MAX = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 256


@dataclass(frozen=True)
class MysqlUser:
    """A user of `serve_mysql`; every user may follow the binlog.

    Args:
        name: 1 to 32 bytes in UTF-8.
        secret: The password, 16 to 256 bytes; see `read_secret`. It is sent by no login, but clients that register as a
            replica may send it.
        may_read: Whether the user may also read the rows of all tables.

    Raises: SchemaInvalid.

    Examples:
        >>> tm.MysqlUser("repl", b"sixteen bytes or more", may_read=True)
        MysqlUser(name='repl', may_read=True)
    """

    name: str
    secret: bytes = field(repr=False)
    may_read: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name.encode()) <= NAME_BYTES_MAX or "\0" in self.name:
            raise SchemaInvalid(f"a user's name has 1 to {NAME_BYTES_MAX} bytes, got {self.name!r}")
        if not isinstance(self.secret, bytes) or not SECRET_BYTES_MIN <= len(self.secret) <= SECRET_BYTES_MAX:
            given = f"{len(self.secret)} bytes" if isinstance(self.secret, bytes) else type(self.secret).__name__
            raise SchemaInvalid(
                f"the secret of user {self.name} must be {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, got {given};"
                " read it from a file with tm.read_secret"
            )


def by_name(users: Iterable[MysqlUser]) -> Mapping[bytes, MysqlUser]:
    """Return users by the bytes of their names. Raises: SchemaInvalid for none, or two of one name."""
    if not isinstance(users, Iterable):
        raise SchemaInvalid(f"users must be several tm.MysqlUser, got one {type(users).__name__}; give them in a list")
    found: dict[bytes, MysqlUser] = {}
    for number, user in enumerate(users):
        if not isinstance(user, MysqlUser):
            raise SchemaInvalid(f"user {number} must be a tm.MysqlUser(name, secret), got {type(user).__name__}")
        if user.name.encode() in found:
            raise SchemaInvalid(f"user {user.name} is given twice; leave one out")
        found[user.name.encode()] = user
    if not found:
        raise SchemaInvalid("a MySQL port needs a user; give users=[tm.MysqlUser(name, secret)]")
    return found


# --- proofs ---------------------------------------------------------------------------------------
def _native(secret: bytes, nonce: bytes) -> bytes:
    known = hashlib.sha1(secret).digest()
    mask = hashlib.sha1(nonce + hashlib.sha1(known).digest()).digest()
    return bytes(a ^ b for a, b in zip(known, mask, strict=True))


def _caching_sha2(secret: bytes, nonce: bytes) -> bytes:
    known = hashlib.sha256(secret).digest()
    mask = hashlib.sha256(hashlib.sha256(known).digest() + nonce).digest()
    return bytes(a ^ b for a, b in zip(known, mask, strict=True))


_PROOFS: Final = {p.NATIVE: _native, p.CACHING_SHA2: _caching_sha2}


def is_proved(plugin: str, user: MysqlUser | None, stranger: bytes, nonce: bytes, proof: bytes) -> bool:
    """Whether a client knows the secret of a user; False for none. stranger: the secret that an unknown name is
    compared with.
    """
    wanted = _PROOFS[plugin](stranger if user is None else user.secret, nonce)
    return hmac.compare_digest(wanted, proof) and user is not None


def nonce_of(random_bytes: bytes) -> bytes:
    """Return a nonce: clients end it at a zero byte, and MySQL leaves out the dollar sign too."""
    return bytes(each % 127 + 1 if each % 127 + 1 != ord("$") else 0x7F for each in random_bytes)
