"""`LogClient`: questions about logs, and orders to them, one at a time over a connection of its own."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from typing import Any

import attrs

from sluiceway.client.address import Address
from sluiceway.client.errors import ClientError, RequestError
from sluiceway.client.link import CONNECT_SECONDS, Link
from sluiceway.client.records import Record, key_of
from sluiceway.client.way import Way, connected


@attrs.frozen
class GroupInfo:
    """A group that reads a log."""

    group: str
    front: int
    """Index of the first record that it has not settled."""
    lag: int
    """Records behind the front."""
    lag_bytes: int | None
    lag_seconds: float | None
    """Age of the record at the front."""
    consumers: int
    unsettled: int
    """Records that were delivered and not acknowledged."""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> GroupInfo:
        """Make the object from a reply of the broker."""
        return cls(
            group=reply["group"],
            front=reply["front"],
            lag=reply["lag"],
            lag_bytes=reply.get("lag_bytes"),
            lag_seconds=reply.get("lag_seconds"),
            consumers=reply.get("consumers", 0),
            unsettled=reply.get("unsettled", 0),
        )


@attrs.frozen
class LogInfo:
    """A log."""

    log: str
    log_id: str
    """Id of this log: a log that is made later under its name has another. Empty: the broker does not say."""
    first: int
    """Index of the oldest record that is there."""
    next: int
    """Index of the record that will be appended next."""
    size: int
    """Records."""
    bytes: int
    """Size on the disk."""
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    groups: tuple[str, ...]

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> LogInfo:
        """Make the object from a reply of the broker."""
        groups = reply.get("groups", ())
        return cls(
            log=reply["log"].removeprefix("/log/"),
            log_id=reply.get("log_id", ""),
            first=reply["first"],
            next=reply["next"],
            size=reply["size"],
            bytes=reply["bytes"],
            first_timestamp_ms=reply.get("first_timestamp_ms"),
            last_timestamp_ms=reply.get("last_timestamp_ms"),
            groups=tuple(group["group"] if isinstance(group, Mapping) else group for group in groups),
        )


@attrs.frozen
class Fetched:
    """Records that were fetched."""

    records: tuple[Record[bytes], ...]
    next: int
    """Index to continue at."""
    gaps: tuple[tuple[int, int, str], ...]
    """Missing records before `next`: from, to (behind the last), reason."""
    log_id: str

    @classmethod
    def of(cls, log: str, broker: str, reply: Mapping[str, Any]) -> Fetched:
        """Make the object from a reply of the broker."""
        records = []
        for row in reply["records"]:
            value = base64.b64decode(row["value_base64"]) if "value_base64" in row else row["value"].encode()
            headers = row.get("headers", {})
            own = {name.replace("_", "-"): row[name] for name in ("key", "key_base64") if name in row}
            key = key_of(own or headers)
            records.append(Record(log, row["index"], row["timestamp_ms"], key, value, headers, broker))
        gaps = tuple((gap["from"], gap["to"], gap["reason"]) for gap in reply.get("gaps", ()))
        return cls(tuple(records), reply["next"], gaps, reply["log_id"])


class LogClient:
    """Asks one broker, or any hub of a cluster, which answers for all. Connects with the first request, and again after
    a connection was lost. For any number of threads, which wait for each other; a context manager.

    All methods raise RequestError with the broker's code, ConnectionLostError or CannotConnectError, RefusedError, and
    TimeoutError.
    """

    def __init__(
        self,
        broker: str | Address,
        *,
        login: str | None = None,
        passcode: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        """`timeout_seconds`: for each answer."""
        self.address = broker if isinstance(broker, Address) else Address.parse(broker, login=login, passcode=passcode)
        self._timeout_seconds = timeout_seconds
        self._way = Way(self.address, "")
        self._link: Link | None = None
        self._turn = threading.Lock()

    def list_logs(self) -> list[LogInfo]:
        """All logs of the broker."""
        found: list[LogInfo] = []
        while True:
            reply = self.request("list", offset=len(found) or None)
            found += [LogInfo.of(each) for each in reply["logs"]]
            if not reply.get("omitted") or not reply["logs"]:
                return found

    def describe(self, log: str) -> LogInfo:
        """One log."""
        return LogInfo.of(self.request("describe", log=log))

    def size(self, log: str, *, group: str | None = None) -> int:
        """Return the number of records; with a group, the number of records ahead of it."""
        return int(self.request("size", log=log, group=group)["size"])

    def closest_index(self, log: str, timestamp_ms: int) -> int:
        """The index of the first record that was appended at this time or later (ms since 1970); that of the next
        record if there is none.
        """
        return int(self.request("closest", log=log, timestamp_ms=timestamp_ms)["index"])

    def groups(self, log: str) -> list[GroupInfo]:
        """Return the groups of a log, with their offsets."""
        return [GroupInfo.of(reply) for reply in self.request("groups", log=log)["groups"]]

    def fetch(
        self,
        log: str,
        from_: int | str | None = None,
        *,
        group: str | None = None,
        max_count: int | None = None,
        max_bytes: int | None = None,
        max_wait_seconds: float | None = None,
        log_id: str | None = None,
    ) -> Fetched:
        """Return the next records from a place on (`next` without it), or from the front of a group without consumers.
        At the end of the log it waits for one, `max_wait_seconds` (20 at most). At least one record comes if there is
        one, perhaps fewer than `max_count` and `max_bytes` allow. Nothing is moved: continue at `next`, and `commit` it
        for a group.
        """
        return Fetched.of(
            log,
            str(self.address),
            self.request(
                "fetch",
                **{"from": from_},
                log=log,
                group=group,
                max_count=max_count,
                max_bytes=max_bytes,
                max_wait_seconds=max_wait_seconds,
                log_id=log_id,
            ),
        )

    def commit(self, log: str, group: str, to: int, *, log_id: str | None = None) -> int:
        """Settle all records of a group below an index, on the disk; the group has no consumers. Returns its front."""
        return int(self.request("commit", log=log, group=group, to=to, log_id=log_id)["front"])

    def seek(self, log: str, group: str, to: int | str, *, log_id: str | None = None) -> int:
        """Move a group: to an index, `earliest`, `latest`, `next` or `time:MS`. `log_id`: only if the log is that one,
        as for the other orders. Returns its new front.
        """
        return int(self.request("seek", log=log, group=group, to=to, log_id=log_id)["front"])

    def delete_group(self, log: str, group: str) -> None:
        """Forget a group; it must not have consumers."""
        self.request("delete-group", log=log, group=group)

    def truncate(self, log: str, before: int | str, *, log_id: str | None = None) -> int:
        """Remove the oldest records: those before an index or `time:MS`, or until `size:BYTES` are left, as far as
        whole files can go. Returns the index of the first that is there.
        """
        return int(self.request("truncate", log=log, before=before, log_id=log_id)["first"])

    def delete(self, log: str, passcode: str, *, log_id: str | None = None) -> None:
        """Delete a log and all its records. `passcode`: the one that the broker's configuration names for it."""
        self.request("delete", log=log, passcode=passcode, log_id=log_id)

    def request(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Any request; arguments that are None are left out. Returns the reply."""
        facts = {key: value for key, value in arguments.items() if value is not None}
        with self._turn:
            link = self._connected()
            try:
                reply = link.ask(f"log/{name}", facts, timeout_seconds=self._timeout_seconds)
            except ClientError:
                self._link = None
                self._way.lost()
                link.cut()
                raise
        return fulfilled(reply)

    def close(self) -> None:
        """End the connection. A later request makes a new one."""
        with self._turn:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def __enter__(self) -> LogClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _connected(self) -> Link:
        link = self._link
        if link is None or not link.is_alive():
            if link is not None:
                link.cut()
            link = connected(
                self._way,
                lambda address, seconds: Link(
                    address, replies="log-replies", timeout_seconds=seconds or CONNECT_SECONDS
                ),
            )
            self._link = link
        return link


def fulfilled(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request. Raises RequestError if it says that the request can't be fulfilled."""
    if reply.get("ok", True) is not True:  # `stat` answers without it
        raise RequestError(str(reply.get("error", "INTERNAL_ERROR")), str(reply.get("message", "")))
    return reply
