"""The handshake: before any other frame, both sides learn each other's identity and prove that they know the secret.

hello (caller) → challenge (called) → proof (caller) → welcome (called), the first sealed frame. The proof is an HMAC
over all messages so far, which include fresh nonces of both sides, so nothing of one session is valid in another
(F106). The keys of both directions are derived from the same transcript and from the roles of the sides: the seal of
the welcome is the called side's own proof. The called side proves nothing to an unproved caller, so an
unauthenticated host learns nothing against which guesses of the secret could be tested.

Any host on the path can send unsealed frames. So each side checks the other side's identity only after its proof, and
refuses it in a sealed frame. A refusal before that is `PeerUnproved`, which ends no channel.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from tidemark.engine.base import errors
from tidemark.engine.base.errors import (
    FrameRejected,
    PeerError,
    PeerRefused,
    PeerUnauthenticated,
    PeerUnproved,
    PeerVersion,
    SchemaInvalid,
)
from tidemark.replication.wire.codec import Kind, cleaned, exactly, from_json, object_of, to_json
from tidemark.replication.wire.frame_layout import (
    FRAME_CHALLENGE,
    FRAME_ERROR,
    FRAME_HELLO,
    FRAME_PROOF,
    FRAME_REFUSE,
    FRAME_WELCOME,
)
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter

VERSION = 1
VERSION_OLDEST = 1
NONCE_BYTES = 32
SECRET_BYTES_MIN = 16
KEY_BYTES_MIN = 32
SERVER_ID_MAX = (1 << 32) - 1
TEXT_MAX = 200


class Party(Protocol):
    """The identity of one side of a link, as it is sent to the other side."""

    fields: ClassVar[dict[str, type]]
    caller: ClassVar[str]  # the roles of the calling and the called side; keys are derived from them
    called: ClassVar[str]

    def check(self) -> None:
        """Refuse an identity that is invalid for a link. Raises: SchemaInvalid."""
        ...

    def peer_from(self, content: dict[str, Any]) -> Any:
        """Return the other side, made from its fields. Raises: PeerRefused if it is no valid peer, FrameRejected."""
        ...


@dataclass(frozen=True)
class Site:
    """The identity of a site: its server id, its store's UUID in hex, the incarnation of the store, and the base name
    of its binlog, "" if it has none. The nodes of a group are one site, and the binlog distinguishes them.
    """

    server_id: int
    store: str
    incarnation: int
    binlog: str = ""

    fields: ClassVar[dict[str, type]] = {"server_id": int, "store": str, "incarnation": int, "binlog": str}
    caller: ClassVar[str] = "replica"
    called: ClassVar[str] = "source"

    def check(self) -> None:
        """Refuse server id 0. Raises: SchemaInvalid."""
        if self.server_id == 0:
            raise SchemaInvalid("server_id 0 does not replicate; open the store with another one")

    def peer_from(self, content: dict[str, Any]) -> Self:
        peer = type(self)(content["server_id"], content["store"], content["incarnation"], content["binlog"])
        is_named = len(peer.binlog) <= TEXT_MAX and peer.binlog.isprintable()
        if not (
            0 <= peer.server_id <= SERVER_ID_MAX and is_store_id(peer.store) and peer.incarnation >= 0 and is_named
        ):
            raise FrameRejected("the fields of a site in the handshake are invalid")
        check_peer(self, peer)
        return peer


def is_store_id(text: str) -> bool:
    return len(text) == 32 and all(each in "0123456789abcdef" for each in text)


def check_secret(secret: bytes, is_exposed: bool = False) -> None:
    """Refuse a secret that can be guessed. is_exposed: other hosts can record the handshake and test guesses against it
    offline. Raises: SchemaInvalid.
    """
    if not isinstance(secret, bytes | bytearray):
        raise SchemaInvalid(
            f"the secret of a link must be bytes, got {type(secret).__name__}; encode it, or read it from its file with"
            " read_secret()"
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise SchemaInvalid(f"the secret of a link has {SECRET_BYTES_MIN} bytes or more, got {len(secret)}")
    if is_exposed and len(secret) < KEY_BYTES_MIN:
        raise SchemaInvalid(
            f"without TLS a link to another host needs a secret of {KEY_BYTES_MIN} random bytes or more, got"
            f" {len(secret)}: shorter ones can be guessed from the traffic; make one with `tidemark secret FILE`, or"
            " give tls"
        )


def check_peer(site: Site, peer: Site) -> None:
    """Refuse a peer with the same store, the same server id or server id 0. Raises: PeerRefused."""
    if peer.store == site.store:
        raise PeerRefused("both sides are the same store; a store does not replicate with itself", peer=peer.store)
    if peer.server_id in (0, site.server_id):
        raise PeerRefused(
            f"the other side has server id {peer.server_id}, this one {site.server_id}; each site needs one of its own,"
            " and 0 does not replicate",
            server_id=peer.server_id,
        )


# An object that is itself a field: its fields are sent in the order of their names, too.
_SORTED = Kind(exactly(dict).check, lambda value: dict(sorted(value.items())))


def _kind(fields: dict[str, type]) -> Kind:
    """Return the kind of a JSON object with these fields, in the order of their names."""
    return object_of({name: _SORTED if kind is dict else exactly(kind) for name, kind in sorted(fields.items())})


def _pack(content: dict[str, Any]) -> bytes:
    return to_json(_kind({name: type(value) for name, value in content.items()}), content)


def _unpack(payload: bytes, fields: dict[str, type]) -> dict[str, Any]:
    """Unpack a payload that must have exactly these fields of these types. Raises: FrameRejected."""
    found: dict[str, Any] = from_json(_kind(fields), payload, "a frame of the handshake")
    return found


class Handshake:
    """The common part of both sides: the transcript so far, and the proof and keys derived from it."""

    def __init__(self, own: Party, secret: bytes, nonce: bytes, reader: FrameReader, writer: FrameWriter) -> None:
        check_secret(secret)
        own.check()
        self.own = own
        self.peer: Any = None  # a party of the same kind, after it has proved that it knows the secret
        self.is_done = False
        self._is_proved = False
        self._content: dict[str, Any] | None = None  # the other side's fields
        self._secret = secret
        self._nonce = nonce
        self._reader = reader
        self._writer = writer
        self._transcript = hashlib.sha256()

    @property
    def is_begun(self) -> bool:
        """Whether the other side has sent its identity in a valid frame."""
        return self._content is not None

    def _recorded_frame(self, kind: int, payload: bytes) -> bytes:
        self._transcript.update(payload)
        return self._writer.frame(kind, payload)

    def _proof(self) -> bytes:
        return self._derive(f"proof of the {self.own.caller}")

    def _derive(self, purpose: str) -> bytes:
        return hmac.new(self._secret, purpose.encode() + self._transcript.digest(), hashlib.sha256).digest()

    def _own_fields(self) -> dict[str, Any]:
        fields = {name: getattr(self.own, name) for name in self.own.fields}
        return {**fields, "nonce": self._nonce.hex()}

    def _peer_fields(self, payload: bytes, more: dict[str, type]) -> dict[str, Any]:
        """Return the other side's fields. more: further fields that the frame must have. Raises: FrameRejected."""
        content = _unpack(payload, {**self.own.fields, "nonce": str, **more})
        if len(content["nonce"]) != 2 * NONCE_BYTES:
            raise FrameRejected("a nonce of the handshake is invalid")
        return content

    def _keys(self, own: str, other: str) -> None:
        self._writer.use_key(self._derive(f"frames of the {own}"))
        self._reader.use_key(self._derive(f"frames of the {other}"))

    def _accept_peer(self) -> None:
        """Check the identity of the other side, which has proved itself. Raises: PeerRefused, FrameRejected."""
        assert self._content is not None
        self._is_proved = True
        self.peer = self.own.peer_from(self._content)

    def refusal(self, error: PeerError) -> bytes:
        """Return the frame that reports an error before the link is closed; sealed if the other side is proved."""
        return self._writer.frame(FRAME_ERROR if self._is_proved else FRAME_REFUSE, error_payload(error))


def error_payload(error: PeerError) -> bytes:
    """Return an error as a payload for the other side."""
    return _pack({"error": type(error).__name__, "message": error.message[:TEXT_MAX]})


def refusal_of(payload: bytes) -> PeerError:
    """Return the error of a sealed frame, as the subclass of PeerError it names. Raises: FrameRejected."""
    leaf, message = _claim(payload, PeerRefused)
    return leaf(f"the other side says: {message}")


def _unproved(payload: bytes) -> PeerUnproved:
    """Return the error of an unsealed frame. Raises: FrameRejected."""
    leaf, message = _claim(payload, PeerError)
    return PeerUnproved(
        f"the link was refused before the other side proved that it knows the secret: {message}", claimed=leaf.__name__
    )


def _claim(payload: bytes, otherwise: type[PeerError]) -> tuple[type[PeerError], str]:
    """Return the class of PeerError that a payload names, `otherwise` if it names none, and the message."""
    content = _unpack(payload, {"error": str, "message": str})
    kind = getattr(errors, content["error"], None)
    leaf = kind if isinstance(kind, type) and issubclass(kind, PeerError) else otherwise
    return leaf, cleaned(content["message"], TEXT_MAX)


class CallerHandshake(Handshake):
    """The calling side."""

    def begin(self) -> bytes:
        """Return the first frame."""
        return self._recorded_frame(
            FRAME_HELLO, _pack({**self._own_fields(), "newest": VERSION, "oldest": VERSION_OLDEST})
        )

    def receive(self, frame: Frame) -> bytes:
        """Return the answer to a frame of the called side, empty after the welcome. Raises: PeerError."""
        if frame.kind == FRAME_REFUSE:
            raise _unproved(frame.payload)
        if frame.kind == FRAME_CHALLENGE and self._content is None:
            return self._answer(frame.payload)
        # The reader has the key since the challenge: these two are sealed.
        if frame.kind == FRAME_ERROR and self._content is not None:
            raise refusal_of(frame.payload)
        if frame.kind == FRAME_WELCOME and self._content is not None and not self.is_done:
            self._accept_peer()
            self.is_done = True
            return b""
        raise FrameRejected(f"a frame of kind {frame.kind} came in the middle of the handshake", kind=frame.kind)

    def _answer(self, payload: bytes) -> bytes:
        content = self._peer_fields(payload, {"version": int})
        version = content["version"]
        if not VERSION_OLDEST <= version <= VERSION:
            raise PeerUnproved(
                f"the {self.own.called} chose version {version} of the protocol, this side speaks {VERSION_OLDEST} to"
                f" {VERSION}; upgrade the older side",
                claimed=PeerVersion.__name__,
            )
        self._content = content
        self._transcript.update(payload)
        answer = self._recorded_frame(FRAME_PROOF, self._proof())
        self._keys(self.own.caller, self.own.called)
        return answer


class CalledHandshake(Handshake):
    """The called side."""

    def __init__(
        self,
        own: Party,
        secret: bytes,
        nonce: bytes,
        reader: FrameReader,
        writer: FrameWriter,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        """admit: called when the caller has proved itself and is a valid peer; it may raise PeerError to refuse it."""
        super().__init__(own, secret, nonce, reader, writer)
        self._admit = admit

    def receive(self, frame: Frame) -> bytes:
        """Return the answer to a frame of the caller. Raises: PeerError; then send its `refusal` and close the link."""
        if frame.kind == FRAME_REFUSE:
            raise _unproved(frame.payload)
        if frame.kind == FRAME_HELLO and self._content is None:
            return self._challenge(frame.payload)
        if frame.kind == FRAME_PROOF and self._content is not None and not self._is_proved:
            if not hmac.compare_digest(frame.payload, self._proof()):
                raise PeerUnauthenticated(
                    f"the {self.own.caller} does not know the secret of this link; compare both secrets"
                )
            self._transcript.update(frame.payload)
            self._keys(self.own.called, self.own.caller)
            self._accept_peer()
            self._admit()
            self.is_done = True
            return self._writer.frame(FRAME_WELCOME, b"")
        raise FrameRejected(f"a frame of kind {frame.kind} came in the middle of the handshake", kind=frame.kind)

    def _challenge(self, payload: bytes) -> bytes:
        content = self._peer_fields(payload, {"newest": int, "oldest": int})
        newest, oldest = content["newest"], content["oldest"]
        version = min(VERSION, newest)
        if version < max(VERSION_OLDEST, oldest):
            raise PeerVersion(
                f"the {self.own.caller} speaks versions {oldest} to {newest} of the protocol,"
                f" this side {VERSION_OLDEST} to {VERSION}; upgrade the older side"
            )
        self._content = content
        self._transcript.update(payload)
        return self._recorded_frame(FRAME_CHALLENGE, _pack({**self._own_fields(), "version": version}))
