"""Claims and staged commits: kept with the metadata managers, asked for by requests.

    /sluiceway/claim/open     {"queue", "group", "planner"}                this one plans; who did before is refused
    /sluiceway/claim/state    {"queue", "group"}                           where the group is
    /sluiceway/claim/claim    {"queue", "group", "claim", "max", "max_bytes"?, "wait_seconds"?}
    /sluiceway/claim/ack      {"queue", "group", "claim"}                  done with all claims up to this
    /sluiceway/claim/touch    {"queue", "group"}                           the group is alive
    /sluiceway/claim/release  {"queue", "group"}                           its claims read as nothing, and come again
        all of these: "grace_seconds"?, how long claims live when nothing is heard of their group; "planner"?, the
        answer is GROUP_TAKEN if another one has opened the group since
    /sluiceway/sink/state     {"query"}                                    the last batch that was published
    /sluiceway/sink/commit    {"query", "batch", "parts": [{"stage", "to", "count"?, "whole"?}, ...]}
                              "whole": false: only the first "count" records of the stage
    /sluiceway/sink/drop      {"stages": [...]}

Answers are as those about logs; what is answered is on disk. A group is a subscription of its claim log, a query one of
SINK_TOPIC.

Source: issue 5 items 3 and 4.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from sluiceway.dispatcher import Periodic
from sluiceway.log_service import BadRequestError, Handler, HasSubscriptions, Send, number_of, read_all, text_of
from sluiceway.protocols.log import get_logger
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.logs.claims import CLAIM_BYTES_MAX, LINGER_SECONDS, Claim, ClaimAttachment, ClaimGroup, ClaimState
from sluiceway.queues.logs.codes import INVALID_TOPIC
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.staged_commits import INVALID_COMMIT, Sinks, SinkState, StagedPart
from sluiceway.queues.logs.table import OWN_PREFIX, LogError, LogTable
from sluiceway.queues.names import DestinationNameError, Kind, parse
from sluiceway.queues.registry import DestinationLimitError, DestinationRegistry
from sluiceway.store.log_storage import LogDisk
from sluiceway.store.metadata import (
    NoSubscriptionStateError,
    SubscriptionData,
    SubscriptionPreferences,
    Version,
)

CLAIM_LOG_PREFIX: Final = OWN_PREFIX + "claims."
SINK_TOPIC: Final = "/sluiceway/sinks"
CLAIMS_SUBSCRIBER: Final = "claims"
GROUPS_MAX: Final = 1000
GROUP_LENGTH_MAX: Final = 200
GRACE_SECONDS_MIN: Final = 1.0
GRACE_SECONDS_MAX: Final = 30 * 24 * 3600.0
FORGOTTEN_SECONDS: Final = 3600.0
"""Time between two searches for forgotten stages."""

log = get_logger("sluiceway.claims")

Done = Callable[[Exception | None], None]


class _Records:
    """Preferences of one subscription, written as a whole: made when they are missing."""

    def __init__(self, managers: HasSubscriptions) -> None:
        self._subscriptions = managers.subscriptions

    def put(self, topic: str, subscriber: str, values: Mapping[str, str], done: Done) -> None:
        try:
            preferences = SubscriptionPreferences(values)
        except ValueError as error:
            done(error)
            return

        def updated(result: object) -> None:
            if isinstance(result, NoSubscriptionStateError):
                self._subscriptions.create(topic, subscriber, SubscriptionData(preferences), made)
            else:
                done(result if isinstance(result, Exception) else None)

        def made(result: object) -> None:
            done(result if isinstance(result, Exception) else None)

        self._subscriptions.update_preferences(topic, subscriber, preferences, Version.ANY, updated)


class ClaimRecords(_Records):
    """Satisfies `sluiceway.queues.logs.claims.ClaimKeeper`."""

    def save(self, log: str, state: ClaimState, done: Done) -> None:
        claims = [[claim.number, claim.start, claim.end, int(claim.released)] for claim in state.claims]
        values = {
            "queue": state.queue,
            "group": state.group,
            "log_id": state.log_id,
            "next": str(state.next_number),
            "taken_to": str(state.taken_to),
            "claims": json.dumps(claims, separators=(",", ":")),
            "again": json.dumps(state.again, separators=(",", ":")),
            "grace_seconds": repr(state.grace_seconds),
            "planner": state.planner,
        }
        self.put(log, CLAIMS_SUBSCRIBER, values, done)


def claim_state_of(values: Mapping[str, str]) -> ClaimState:
    """Return the state that `ClaimRecords` wrote. Raises ValueError, KeyError."""
    return ClaimState(
        values["queue"],
        values["group"],
        values["log_id"],
        int(values["next"]),
        int(values["taken_to"]),
        tuple(
            Claim(number, start, end, bool(released)) for number, start, end, released in json.loads(values["claims"])
        ),
        tuple((start, end) for start, end in json.loads(values["again"])),
        float(values["grace_seconds"]),
        values.get("planner", ""),
    )


class SinkRecords(_Records):
    """Satisfies `sluiceway.queues.logs.staged_commits.SinkKeeper`."""

    def __init__(self, managers: HasSubscriptions) -> None:
        super().__init__(managers)
        self._checked: tuple[SinkState, Mapping[str, str]] | None = None
        """State that was checked last, and is about to be saved."""

    def check(self, state: SinkState) -> None:
        values = _values_of(state)
        self._checked = state, values
        try:
            SubscriptionPreferences(values)
        except ValueError as error:
            raise LogError(
                INVALID_COMMIT,
                f"{len(state.parts)} parts with their names are more than can be kept of one commit ({error}): stage "
                "in fewer logs",
            ) from None

    def save(self, state: SinkState, done: Done) -> None:
        checked, self._checked = self._checked, None
        values = checked[1] if checked is not None and checked[0] is state else _values_of(state)
        self.put(SINK_TOPIC, state.query, values, done)

    def forget(self, query: str) -> None:
        def forgotten(result: object) -> None:
            if isinstance(result, Exception):
                log.warning("staged output of a query not deleted", query=query, error=str(result))

        self._subscriptions.delete(SINK_TOPIC, query, Version.ANY, forgotten)


def _values_of(state: SinkState) -> Mapping[str, str]:
    # Earlier versions do not know `whole`: where it is true it is left out.
    parts = [attrs.astuple(part)[: -1 if part.whole else None] for part in state.parts]
    return {
        "batch": str(state.batch),
        "intended": str(state.intended),
        "parts": json.dumps(parts, separators=(",", ":")),
        "used_ms": str(state.used_ms),
    }


def sink_state_of(query: str, values: Mapping[str, str]) -> SinkState:
    """Return the state that `SinkRecords` wrote. Raises ValueError, KeyError."""
    parts = tuple(StagedPart(*part) for part in json.loads(values["parts"]))
    return SinkState(query, int(values["batch"]), int(values["intended"]), parts, int(values["used_ms"]))


class Claims:
    """All claim groups and sinks of a broker, and the requests about them."""

    def __init__(
        self,
        table: LogTable,
        registry: DestinationRegistry,
        managers: HasSubscriptions,
        disk: LogDisk,
        environment: QueueEnvironment,
        *,
        tag_of: Callable[[str], str] = lambda _queue: "",
    ) -> None:
        """`tag_of`: returns what leads the name of a log into the shard of this queue, where its claims are kept."""
        self._tag_of = tag_of
        self._table = table
        self._registry = registry
        self._managers = managers
        self._environment = environment
        self._keeper = ClaimRecords(managers)
        self.groups: dict[str, ClaimGroup] = {}
        self.sinks = Sinks(table, SinkRecords(managers), disk.read, now_ms=environment.now_ms, warn=log.warning)
        self._looks = Periodic(environment.scheduling.call_later, FORGOTTEN_SECONDS, self.sinks.drop_forgotten)
        self.handlers: Mapping[str, Handler] = {
            "claim/open": self._open,
            "claim/state": self._state,
            "claim/claim": self._claim,
            "claim/ack": self._ack,
            "claim/touch": self._touch,
            "claim/release": self._release,
            "sink/state": self._sink_state,
            "sink/commit": self._commit,
            "sink/drop": self._drop,
        }

    async def restore(self) -> None:
        """Read what an earlier run left; commits that were begun are carried on. Raises MetadataError."""
        await self.restore_groups(list(self._table.logs))
        self.sinks.restore(await self._sink_states(self._managers))
        self._looks.start()

    async def restore_sinks(self, managers: HasSubscriptions) -> None:
        """Read the states of queries in a shard that is opened while others serve. Raises MetadataError."""
        self.sinks.arrive(await self._sink_states(managers))

    async def _sink_states(self, managers: HasSubscriptions) -> list[SinkState]:
        states = []
        for query, found in (await read_all(managers, SINK_TOPIC)).items():
            try:
                states.append(sink_state_of(query, found.value.preferences.values))
            except (ValueError, KeyError) as error:
                log.error("state of a query can't be read", query=query, error=str(error))
        return states

    async def restore_groups(self, names: Iterable[str]) -> None:
        """Read what an earlier run left of the groups whose claims are in logs among these. Raises MetadataError."""
        for name in [name for name in names if name.startswith(CLAIM_LOG_PREFIX)]:
            for found in (await read_all(self._managers, name)).values():
                try:
                    self._make(self._table.logs[name], claim_state_of(found.value.preferences.values))
                except (ValueError, KeyError) as error:
                    log.error("the claims of a group can't be read: it begins anew", log=name, error=str(error))

    def leave(self, claim_log: Log) -> None:
        """Forget the group whose claims are in this log: its shard is closed."""
        group = self.groups.pop(claim_log.name, None)
        if group is not None:
            group.close()

    def close(self) -> None:
        """The broker stops."""
        self._looks.stop()
        for group in self.groups.values():
            group.close()
        self.groups.clear()

    def abandon(self, claim_log: Log) -> None:
        """A mistake of the broker has closed this log: the group whose claims were in it goes with it, and commits of
        staged records that wait for it fail.
        """
        self.sinks.abandon(claim_log)
        group = self.groups.get(claim_log.name)
        if group is not None and group.log is claim_log:
            del self.groups[claim_log.name]
            group.abandon()

    # ------------------------------------------------------------------ groups

    def _make(self, claim_log: Log, state: ClaimState) -> ClaimGroup:
        address = parse(state.queue)

        def attach(group: ClaimGroup) -> ClaimAttachment:
            try:
                return self._registry.attach(address, group)
            except DestinationLimitError as error:
                raise LogError(INVALID_TOPIC, str(error)) from None

        group = self.groups[claim_log.name] = ClaimGroup(
            claim_log,
            state,
            self._keeper,
            self._environment,
            attach,
            self._table.prune,
        )
        if state.log_id not in ("", claim_log.log_id) and (state.claims or state.again):
            log.warning(
                "the log of a claim group was replaced: its claims read as nothing, and their messages are lost",
                log=claim_log.name, queue=state.queue, group=state.group, claims=len(state.claims),
            )  # fmt: skip
        return group

    def _group(self, request: Mapping[str, Any], *, opening: bool = False) -> ClaimGroup:
        """The group that a request is about. Raises LogError, BadRequestError."""
        queue, name = text_of(request, "queue"), text_of(request, "group")
        if len(name) > GROUP_LENGTH_MAX:
            raise BadRequestError(f'the "group" has {len(name)} characters: {GROUP_LENGTH_MAX} at most')
        try:
            address = parse(queue)
        except DestinationNameError as error:
            raise LogError(INVALID_TOPIC, str(error)) from None
        is_temporary = address.temporary_local or address.temporary_global
        if address.kind is not Kind.QUEUE or address.wildcard or is_temporary or "," in queue:
            raise LogError(INVALID_TOPIC, f"{queue[:80]!r} is no queue: claims are for one queue by its full name")
        key = hashlib.sha256(f"{address.canonical}\0{name}".encode()).hexdigest()[:24]
        log_name = CLAIM_LOG_PREFIX + self._tag_of(address.canonical) + key
        group = self.groups.get(log_name)
        if group is None and len(self.groups) >= GROUPS_MAX:
            raise LogError(INVALID_TOPIC, f"there are {GROUPS_MAX} claim groups already")
        claim_log = self._table.get(log_name)
        if group is None:
            group = self._make(claim_log, ClaimState(address.canonical, name, claim_log.log_id))
        elif group.log is not claim_log:  # it was deleted: its records are gone, the numbers continue
            group.close()
            group = self._make(claim_log, group.state)
        if "planner" in request and not opening:
            group.check_planner(_planner_of(request))
        if "grace_seconds" in request:
            given = request["grace_seconds"]
            if not isinstance(given, int | float) or not GRACE_SECONDS_MIN <= given <= GRACE_SECONDS_MAX:
                raise BadRequestError(f'"grace_seconds" must be {GRACE_SECONDS_MIN} to {GRACE_SECONDS_MAX}')
            group.set_grace(float(given))
        return group

    def _open(self, request: Mapping[str, Any], send: Send) -> None:
        planner = _planner_of(request)
        self._group(request, opening=True).open_for(planner, send)

    def _state(self, request: Mapping[str, Any], send: Send) -> None:
        group = self._group(request)
        group.touch()
        destination = self._registry.destinations.get(group.state.queue)
        partitions = () if destination is None else destination.queue.partitions.values()
        send({**group.describe(), "waiting": sum([queue.statistics().depth_count for queue in partitions])})

    def _claim(self, request: Mapping[str, Any], send: Send) -> None:
        group = self._group(request)
        bytes_max = number_of(request, "max_bytes") if "max_bytes" in request else CLAIM_BYTES_MAX
        count_max = number_of(request, "max")
        if not count_max or not bytes_max:
            raise BadRequestError('"max" and "max_bytes" must be above 0')
        wait_seconds = request.get("wait_seconds", LINGER_SECONDS)
        if not isinstance(wait_seconds, int | float) or not wait_seconds >= 0:
            raise BadRequestError('"wait_seconds" must be a number of seconds')
        group.claim(
            number_of(request, "claim"),
            count_max,
            bytes_max,
            lambda answer: send(_with_log(answer, group)),
            wait_seconds=wait_seconds,
        )

    def _ack(self, request: Mapping[str, Any], send: Send) -> None:
        self._group(request).ack(number_of(request, "claim"), send)

    def _touch(self, request: Mapping[str, Any], send: Send) -> None:
        self._group(request).touch()
        send({})

    def _release(self, request: Mapping[str, Any], send: Send) -> None:
        self._group(request).release(send)

    # ------------------------------------------------------------------ sinks

    def _sink_state(self, request: Mapping[str, Any], send: Send) -> None:
        send(self.sinks.describe(text_of(request, "query")))

    def _commit(self, request: Mapping[str, Any], send: Send) -> None:
        given = request.get("parts")
        if not isinstance(given, list) or not all(isinstance(part, dict) for part in given):
            raise BadRequestError('the request needs "parts", a list of objects')
        parts = [_part_of(part) for part in given]
        self.sinks.commit(text_of(request, "query"), number_of(request, "batch"), parts, send)

    def _drop(self, request: Mapping[str, Any], send: Send) -> None:
        stages = request.get("stages")
        if not isinstance(stages, list) or not all(isinstance(stage, str) for stage in stages):
            raise BadRequestError('the request needs "stages", a list of names')
        self.sinks.drop(stages)
        send({})


def _part_of(given: Mapping[str, Any]) -> StagedPart:
    """Parse a part of a request that may name a thousand. Raises BadRequestError."""
    stage, target, count = given.get("stage"), given.get("to"), given.get("count", -1)
    if not (stage and target and type(stage) is type(target) is str):
        stage, target = text_of(given, "stage"), text_of(given, "to")
    whole = given.get("whole", True)
    if not isinstance(whole, bool) or (not whole and count == -1):
        raise BadRequestError('"whole" is true or false, and false only with a "count"')
    return StagedPart(stage, target, count if count == -1 else number_of(given, "count"), whole=whole)


def _planner_of(request: Mapping[str, Any]) -> str:
    planner = text_of(request, "planner")
    if not 0 < len(planner) <= GROUP_LENGTH_MAX:
        raise BadRequestError(f'the "planner" has {len(planner)} characters: 1 to {GROUP_LENGTH_MAX} are possible')
    return planner


def _with_log(answer: Mapping[str, Any] | LogError, group: ClaimGroup) -> Mapping[str, Any] | LogError:
    return answer if isinstance(answer, LogError) else {**answer, "log": group.log.name}
