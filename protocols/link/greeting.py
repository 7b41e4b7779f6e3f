"""Greeting of two hubs: who each is, whether they belong together, and the proof.

Each side says HELLO, then PROOF. With a shared secret the proof is HMAC-SHA256 over both greetings and the side that
speaks: a peer that only repeats what it heard proves nothing, and neither does one that plays a greeting again, since
each has a fresh challenge. Without a secret the stream has to tell who the peer is (a client certificate, a Unix socket
that only this user can open); then the proof is empty, and the shell asks the stream.

Pure: challenges are passed in.
"""

from __future__ import annotations

import hmac
import json
from typing import Final

import attrs

from .records import LinkFault

LINK_VERSION: Final = 1
"""Version of the protocol of links."""
CHALLENGE_BYTES: Final = 16
_NAME_LENGTH_MAX: Final = 256


@attrs.frozen
class Greeting:
    """Identity of one hub."""

    cluster: str
    """Id of the cluster, made once with its shards."""
    hub: str
    """Id of the hub, stable over restarts."""
    software: str
    """Name and version of the software."""
    shards_count: int
    """Number of shards of the cluster."""
    challenge: str
    """Fresh random text, which the proof of the peer covers."""
    run: str = ""
    """Id of this run of the hub: another one after a restart."""
    version: int = LINK_VERSION

    def encode(self) -> bytes:
        """Return the payload of HELLO."""
        return json.dumps(attrs.asdict(self), separators=(",", ":"), sort_keys=True).encode()


def decode(payload: bytes) -> Greeting:
    """Read the payload of HELLO; members of later versions are ignored. Raises LinkFault."""
    try:
        members = json.loads(payload)
    except ValueError:
        raise LinkFault("the greeting of the peer is no JSON") from None
    if not isinstance(members, dict):
        raise LinkFault("the greeting of the peer is no JSON object")
    version = members.get("version")
    if version != LINK_VERSION:
        # First of all: whatever else another version says may mean something else.
        raise LinkFault(
            f"the peer speaks version {version!r} of links ({_shown(members.get('software'))}), this hub version "
            f"{LINK_VERSION}: run the same version of the software on both"
        )
    found: dict[str, str | int] = {}
    for field in attrs.fields(Greeting):
        value = members.get(field.name, "" if field.name == "run" else None)
        wanted = int if field.name in ("shards_count", "version") else str
        if type(value) is not wanted or (isinstance(value, str) and len(value) > _NAME_LENGTH_MAX):
            raise LinkFault(f"the greeting of the peer has no valid {field.name}: {_shown(value)}")
        found[field.name] = value
    return Greeting(**found)  # type: ignore[arg-type]


def check(ours: Greeting, theirs: Greeting, *, expected_hub: str | None) -> None:
    """Check that both hubs belong together. `expected_hub`: the one that was dialled. Raises LinkFault."""
    if theirs.cluster != ours.cluster:
        raise LinkFault(
            f"hub {_shown(theirs.hub)} belongs to the cluster {_shown(theirs.cluster)}, this one to "
            f"{_shown(ours.cluster)}: one of the addresses is wrong"
        )
    if theirs.shards_count != ours.shards_count:
        raise LinkFault(
            f"hub {_shown(theirs.hub)} counts {theirs.shards_count} shards, this one {ours.shards_count}: one was "
            f"not made by the `cluster init` of this cluster"
        )
    if theirs.hub == ours.hub:
        raise LinkFault(
            f"the peer says that it is hub {_shown(ours.hub)}, as this one: each hub needs a name of its own"
        )
    if expected_hub is not None and theirs.hub != expected_hub:
        raise LinkFault(f"hub {_shown(theirs.hub)} answers where hub {_shown(expected_hub)} was expected")
    if theirs.challenge == ours.challenge:
        raise LinkFault("the peer repeats the greeting of this hub")


def proof(secret: bytes, speaker: Greeting, listener: Greeting, *, dialled: bool) -> bytes:
    """Return the proof of `speaker`, for `listener`. `dialled`: the speaker has opened the connection."""
    parts = (b"dialled" if dialled else b"accepted", speaker.encode(), listener.encode())
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def check_proof(given: bytes, expected: bytes, hub: str) -> None:
    """Compare two proofs in constant time. Raises LinkFault."""
    if not hmac.compare_digest(given, expected):
        raise LinkFault(f"hub {_shown(hub)} does not know the secret of this cluster")


def _shown(value: object) -> str:
    return repr(value)[:80]
