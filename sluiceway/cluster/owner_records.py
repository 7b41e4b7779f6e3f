"""Records of a cluster in the coordination service, and their bytes: JSON, so that people can read them there.

    /cluster         name, id, number of shards, layout: made once by `sluiceway cluster init`
    /shards/NUMBER   owner of one shard: hub, session, epoch; and the hub that an operator has chosen for it

Epochs only grow, and records of shards are never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import attrs

from sluiceway.queues.shard_hash import SHARDS_MAX, is_shards_count
from sluiceway.store.compare_and_set import BadVersionError, MetadataError, Records, Version, Versioned

from .coordination.port import NAME

CLUSTER_PATH: Final = "/cluster"
SHARDS_PATH: Final = "/shards"

LAYOUT: Final = 1
"""Layout of these records, and of what hubs say to each other."""


class ClusterRecordError(ValueError):
    """A record can't be read. The message names the record."""


class ClusterMismatchError(Exception):
    """Hub that does not belong into the cluster that was found. The message says why, and what helps."""


def shard_path(shard: int) -> str:
    """Return the path of a shard's record."""
    return f"{SHARDS_PATH}/{shard}"


@attrs.frozen
class OwnerRecord:
    """Owner of a shard."""

    hub: str
    """Hub that has or had the shard; with the local engine its data is there."""
    session: str
    """Session for which the claim holds; empty: the shard was released, and is free."""
    epoch: int
    pinned: str = ""
    """Hub that an operator has chosen; empty: the rendezvous chooses."""

    def encoded(self) -> bytes:
        """Return the bytes."""
        fields = {"hub": self.hub, "session": self.session, "epoch": self.epoch}
        return json.dumps({**fields, "pinned": self.pinned} if self.pinned else fields).encode()

    @classmethod
    def decoded(cls, data: bytes, shard: int) -> OwnerRecord:
        """Return the record of a shard. Raises ClusterRecordError."""
        what = f"the record of shard {shard}"
        fields = _object(data, what)
        return cls(
            _text(fields, "hub", what),
            _text(fields, "session", what),
            _number(fields, "epoch", what),
            _text({"pinned": "", **fields}, "pinned", what),
        )


@attrs.frozen
class ClusterRecord:
    """Identity of a cluster. Raises ValueError for invalid values."""

    name: str
    id: str
    """Random text: tells one cluster from another at the same path."""
    shards_count: int
    layout: int = LAYOUT

    def __attrs_post_init__(self) -> None:
        if not is_shards_count(self.shards_count):
            raise ValueError(f"the number of shards is a power of two up to {SHARDS_MAX}, got {self.shards_count}")
        if NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name[:80]!r} is no name of a cluster: letters, digits, dots, hyphens, underscores")

    def encoded(self) -> bytes:
        """Return the bytes."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def decoded(cls, data: bytes) -> ClusterRecord:
        """Return the record. Raises ClusterRecordError."""
        what = "the record of the cluster"
        fields = _object(data, what)
        try:
            return cls(
                _text(fields, "name", what),
                _text(fields, "id", what),
                _number(fields, "shards_count", what),
                _number(fields, "layout", what),
            )
        except ClusterRecordError:
            raise
        except ValueError as error:
            raise ClusterRecordError(f"{what} is invalid: {error}") from error


def check_cluster(found: bytes | None, where: str, *, shards_count: int = 0, known_id: str = "") -> ClusterRecord:
    """Return the cluster that a hub has found at `where`. `shards_count`: by configuration, 0: whatever is found;
    `known_id`: that of the data of this hub, empty: none yet. Raises ClusterMismatchError.
    """
    if found is None:
        raise ClusterMismatchError(f"there is no cluster at {where} yet: make it with `sluiceway cluster init`")
    try:
        record = ClusterRecord.decoded(found)
    except ClusterRecordError as error:
        raise ClusterMismatchError(f"{where} is used by something else, or is damaged: {error}") from error
    if record.layout > LAYOUT:
        raise ClusterMismatchError(
            f"the cluster {record.name} at {where} has layout {record.layout}, and this version knows layouts up to "
            f"{LAYOUT}: install the version of the other hubs"
        )
    if known_id and known_id != record.id:
        raise ClusterMismatchError(
            f"{where} holds the cluster {record.name} ({record.id}), and the data of this hub belongs to another one "
            f"({known_id}): give each cluster a path of its own"
        )
    if shards_count and shards_count != record.shards_count:
        raise ClusterMismatchError(
            f"the cluster {record.name} has {record.shards_count} shards, and this hub is configured for "
            f"{shards_count}: the number is fixed when a cluster is made"
        )
    return record


def make_cluster(records: Records, record: ClusterRecord, where: str, done: Callable[[Exception | None], None]) -> None:
    """Make a cluster at `where`. `done` gets None, or a ClusterMismatchError if the place is taken."""

    def written(result: Version | MetadataError) -> None:
        if isinstance(result, BadVersionError):
            records.read(CLUSTER_PATH, found)
        else:
            done(result if isinstance(result, MetadataError) else None)

    def found(there: Versioned[bytes] | MetadataError | None) -> None:
        if isinstance(there, MetadataError):
            done(there)
            return
        try:
            other = check_cluster(None if there is None else there.value, where)
        except ClusterMismatchError as error:
            done(error)
        else:
            done(
                ClusterMismatchError(
                    f"{where} holds the cluster {other.name} with {other.shards_count} shards already: give each "
                    "cluster a path of its own"
                )
            )

    records.write(CLUSTER_PATH, record.encoded(), Version.NEW, written)


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ClusterRecordError(f"{what} is no JSON: {data[:80]!r}") from error
    if not isinstance(fields, dict):
        raise ClusterRecordError(f"{what} is no object: {data[:80]!r}")
    return fields


def _text(fields: dict[str, Any], field: str, what: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        raise ClusterRecordError(f"{what} has no {field}")
    return value


def _number(fields: dict[str, Any], field: str, what: str) -> int:
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ClusterRecordError(f"{what} has no {field}")
    return value
