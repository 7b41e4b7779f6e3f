"""Owners of shards: one hub claims those that it is to have, hands over those that another one is to have, and abandons
all of them when its session ends. Pure: time, records and the opening of shards are passed in.

Who is to have a shard: the hub that an operator has chosen, if it lives, else the one that the rendezvous chooses among
live hubs by weight, once the owners of all shards are known. Where data stays (DataPlace.LOCAL), the hub that has had
the shard, and no other one.

A claim. The record {hub, session, epoch} of the shard is read, then the live hubs, which are at least as new. A hub
whose session is in the record and alive keeps the shard until it releases the record. Else the record is written with
this hub, its session and the next epoch, by compare-and-set: of two hubs one wins. So epochs only grow, and an epoch
has one owner for ever.

A hand-over. The owner sees that another hub is to have the shard, closes it in order, and writes the record without a
session. The other one claims it. Hand-overs wait until the list of hubs has not changed for a while and all records
have been read just before, and few are under way at a time. Taking over from a hub that is gone waits for nothing; but
a hub that is new leaves the shards of one that it has not seen for a while, since that may be about to come.

Safety. A hub confirms only in ClaimState.OPEN while its session is certain (`may_confirm`): another hub takes over only
when the service has ended the session, which is later. What a stopped process sends when it wakes up is refused by the
epoch, which a shared engine checks where it writes.

Hints (watches, lists of hubs) may be late or lost: a sweep looks again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Final, Protocol

import attrs

from sluiceway.flow.words import age_in_words, ranges_in_words
from sluiceway.store.compare_and_set import MetadataError, MetadataFailedError, Version, Versioned
from sluiceway.store.engine import FencedError

from . import rendezvous
from .claim_states import ClaimState, moved
from .coordination.port import Coordination, Hub, Scheduling, SessionState, TimerHandle
from .owner_records import ClusterRecordError, OwnerRecord, shard_path

SETTLE_SECONDS: Final = 3.0
"""Time without a change of the list of hubs before a shard moves from one live hub to another."""

START_SECONDS: Final = 30.0
"""Time that a hub which has come waits for hubs that are expected, before it takes what they are to have."""

SWEEP_SECONDS: Final = 5.0
"""Time between two looks at what hints may have missed."""

RETRY_SECONDS: Final = 1.0

FRESH_SECONDS: Final = 1.0
"""Age of what is known of all owners, beyond which it is read again before a shard moves for the sake of balance."""

SEEN_SECONDS: Final = 3600.0
"""Time for which a hub that went without a word counts as missing, where nothing else expects it."""

GONE_MAX: Final = 100
"""Hubs that are gone and whose last moment is remembered: the latest ones."""

SWEEP_PORTIONS: Final = 4
"""Sweeps that shards at home elsewhere are read in: all of their hints may have been lost, and they are the most."""

MOVES_MAX: Final = 2
"""Hand-overs of one hub at a time."""


class DataPlace(Enum):
    """Hubs that can open a shard."""

    SHARED = "shared"
    """Every hub: the engine is a database, or a folder that all of them reach."""
    LOCAL = "local"
    """The hub that has had the shard: the data is on its disk."""


class NotMovableError(Exception):
    """Shards can't move, or not to there. The message says why."""


class ShardHost(Protocol):
    """Port to what opens shards. Calls return at once; `done` may be called from inside."""

    def open(self, shard: int, epoch: int, done: Callable[[Exception | None], None]) -> None:
        """Open and recover a shard. After a failure it is asked for again."""

    def close(self, shard: int, done: Callable[[], None]) -> None:
        """Close an open shard in order: what is in flight goes to the store, consumers see redeliveries."""

    def abandon(self, shard: int) -> None:
        """Drop a shard as it stands, whether it is being opened, open or being closed. Nothing of it is written or
        confirmed any more, and no `done` counts.
        """

    def hold(self) -> None:
        """Confirm and deliver nothing: the session is uncertain."""

    def resume(self) -> None:
        """Confirm again."""

    def owner_changed(self, shard: int) -> None:
        """Look at `Ownership.where` again."""

    def hubs_changed(self) -> None:
        """Look at `Ownership.hubs` again."""


@attrs.frozen
class Whereabouts:
    """Place of a shard, as far as this hub knows."""

    shard: int
    hub: str
    """Owner; empty: none now."""
    epoch: int
    is_here: bool
    """Whether the shard is open at this hub."""
    words: str
    """Reason why the shard has no owner, for people; empty if it has one."""


@attrs.frozen
class GoneHub:
    """A hub that is to be in the cluster, and is not."""

    name: str
    seconds: float
    """Time for which it is not there, as far as this hub can say."""
    was_seen: bool
    """Whether the hub has been in the cluster, as far as this one has seen."""
    shards: tuple[int, ...]
    """Shards that it had last, and that no hub has now."""

    @property
    def words(self) -> str:
        """Return what can stand behind its name."""
        age = age_in_words(self.seconds)
        said = f"it is gone for {age}" if self.was_seen else f"it has not come, in the {age} of this hub"
        if not self.shards:
            return said
        waits = "waits" if len(self.shards) == 1 else "wait"
        return f"{said}; {'shard' if len(self.shards) == 1 else 'shards'} {ranges_in_words(self.shards)} {waits}"


class _Claim:
    """One hub's view of one shard."""

    __slots__ = ("epoch", "is_damaged", "is_known", "record", "seen_epoch", "shard", "state", "turn", "words")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.state = ClaimState.ELSEWHERE
        self.record: Versioned[OwnerRecord] | None = None
        self.is_known = False
        """Whether the record was read in this session."""
        self.is_damaged = False
        """Whether what was read last is no record."""
        self.epoch = 0
        """Epoch under which this hub claims the shard."""
        self.seen_epoch = 0
        """Epoch of the last owner that was alive when this hub looked, in this session; 0: none."""
        self.turn = 0
        """Number that tells answers for the present state from late ones."""
        self.words = ""
        """Last failure of opening."""

    @property
    def owner(self) -> OwnerRecord | None:
        """Contents of the record."""
        return None if self.record is None else self.record.value

    def move(self, state: ClaimState) -> int:
        """Go to a state. Returns the number of the turn."""
        self.state = moved(self.state, state)
        self.turn += 1
        return self.turn


_HELD: Final = frozenset({ClaimState.OPENING, ClaimState.OPEN, ClaimState.CLOSING})
"""States in which the host knows the shard."""

_STEADY: Final = frozenset({ClaimState.ELSEWHERE, ClaimState.OPENING, ClaimState.OPEN})
"""States in which the record may be read to see what has changed."""


class Ownership:
    """Claims of one hub on all shards. The events of its Coordination come here."""

    def __init__(
        self,
        coordination: Coordination,
        host: ShardHost,
        scheduling: Scheduling,
        clock: Callable[[], float],
        *,
        hub: Hub,
        shards_count: int,
        data_place: DataPlace = DataPlace.SHARED,
        settle_seconds: float = SETTLE_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        moves_max: int = MOVES_MAX,
        expected_count: int = 0,
    ) -> None:
        """`clock`: the monotonic seconds of the coordination; `expected_count`: number of hubs of the whole cluster, if
        it is known: with all of them there a hub waits for no others.
        """
        self._coordination = coordination
        self._host = host
        self._scheduling = scheduling
        self._clock = clock
        self._hub = hub
        self._claims = [_Claim(shard) for shard in range(shards_count)]
        self._data_place = data_place
        self._settle_seconds = settle_seconds
        self._sweep_seconds = sweep_seconds
        self._retry_seconds = retry_seconds
        self._moves_max = moves_max
        self._expected_count = expected_count
        self._new_until_seconds = 0.0
        """Time until which hubs that are not here may be about to come: a cluster starts."""
        self._hubs: Mapping[str, Hub] = {}
        self._gone_since_seconds: dict[str, float] = {}
        """Time since which each hub is gone that has not left in order: GONE_MAX, the latest last."""
        self._began_seconds = clock()
        self._settled_at_seconds = 0.0
        self._settle_timer: TimerHandle | None = None
        self._sweep_timer: TimerHandle | None = None
        self._sweeps_count = 0
        self._choice: Mapping[int, str] | None = None
        """Hub of each shard, as the rendezvous has chosen; None: to be computed."""
        self._readings_count = 0
        """Number of times that all records were read: tells answers for the last time from late ones."""
        self._read_at_seconds = -math.inf
        """Time at which all records were read last; `_asked_at_seconds`: were asked for."""
        self._asked_at_seconds = -math.inf
        self._left: Callable[[], None] | None = None
        self._is_over = False

    # Calls of the broker.

    def start(self, address: str = "", clients: str = "") -> None:
        """Join the cluster. `address`: of this hub for links, and `clients`: its URLs for clients, where they are
        known only now.
        """
        self._hub = attrs.evolve(self._hub, address=address or self._hub.address, clients=clients or self._hub.clients)
        for claim in self._claims:
            self._coordination.watch(shard_path(claim.shard), partial(self._refresh, claim))
        self._coordination.start(self._hub, self)
        self._sweep()

    def may_confirm(self, shard: int) -> bool:
        """Return whether this hub may answer for a shard at this moment. O(1)."""
        return self._claims[shard].state is ClaimState.OPEN and self._clock() < self._coordination.certain_until_seconds

    def epoch(self, shard: int) -> int:
        """Return the epoch under which this hub holds or has held a shard; 0: it never has."""
        return self._claims[shard].epoch

    def state(self, shard: int) -> ClaimState:
        """Return the state of the claim on a shard."""
        return self._claims[shard].state

    @property
    def hubs(self) -> Mapping[str, Hub]:
        """Live hubs by name, as last heard."""
        return self._hubs

    def where(self, shard: int) -> Whereabouts:
        """Return the place of a shard, in words where it has none."""
        claim = self._claims[shard]
        owner = claim.owner
        epoch = 0 if owner is None else owner.epoch
        if claim.state is ClaimState.OPEN:
            return Whereabouts(shard, self._hub.name, claim.epoch, True, "")
        if owner is not None and self._lives(owner) and owner.hub != self._hub.name:
            return Whereabouts(shard, owner.hub, epoch, False, "")
        return Whereabouts(shard, "", epoch, False, self._words(claim))

    def wanted_at(self, shard: int) -> str:
        """Return the hub that is to have a shard; empty: there is none."""
        return self._wanted_at(self._claims[shard]) or ""

    def pinned_to(self, shard: int) -> str:
        """Return the hub that an operator has chosen for a shard; empty: the rendezvous chooses."""
        owner = self._claims[shard].owner
        return "" if owner is None else owner.pinned

    def gone(self, expected: Iterable[str] = ()) -> dict[str, GoneHub]:
        """Return the hubs that are to be in the cluster and are not: those that are `expected`, that had shards last,
        or that were there within the last hour and have not left in order. O(shards).
        """
        now_seconds = self._clock()
        waiting: dict[str, list[int]] = {name: [] for name in expected}
        for name, since_seconds in self._gone_since_seconds.items():
            if now_seconds - since_seconds < SEEN_SECONDS:
                waiting.setdefault(name, [])
        for claim in self._claims:
            owner = claim.owner
            if owner is not None and owner.hub not in self._hubs:
                shards = waiting.setdefault(owner.hub, [])
                if claim.state is not ClaimState.OPEN:
                    shards.append(claim.shard)
        found = {}
        for name in sorted(waiting.keys() - self._hubs.keys() - {self._hub.name}):
            since = self._gone_since_seconds.get(name)
            seconds = now_seconds - (self._began_seconds if since is None else since)
            found[name] = GoneHub(name, seconds, since is not None, tuple(waiting[name]))
        return found

    def look_again(self, shard: int) -> None:
        """Read the record of a shard: another hub has said that the shard is not there."""
        self._refresh(self._claims[shard])

    def give_up(self, shard: int) -> None:
        """Close an open shard whose store refuses this owner, and release it. It is claimed anew, with a later epoch,
        if this hub is to have it still.
        """
        claim = self._claims[shard]
        if claim.state is ClaimState.OPEN:
            self._close(claim)

    def drain(self) -> None:
        """Give all shards to other hubs, and take none. Raises NotMovableError where data stays."""
        self._refuse_move("drained")
        self.weigh(0.0)

    def weigh(self, weight: float) -> None:
        """Change the weight of this hub."""
        self._hub = attrs.evolve(self._hub, weight=weight)
        self._coordination.advertise(self._hub)

    def move(self, shard: int, hub: str, done: Callable[[Exception | None], None]) -> None:
        """Have a shard move to a hub and stay there; an empty name leaves the choice to the rendezvous. `done` is told
        when it is agreed, not when it has happened. Raises NotMovableError.
        """
        self._refuse_move(f"moved to {hub}")
        if hub and hub not in self._hubs:
            raise NotMovableError(f"shard {shard} can't move to {hub}: the hub is not in the cluster now")
        if hub and self._hubs[hub].weight <= 0:
            raise NotMovableError(f"shard {shard} can't move to {hub}: the hub is being drained")

        def answered(found: Versioned[bytes] | MetadataError | None) -> None:
            if isinstance(found, MetadataError):
                done(found)
            elif found is None:
                done(NotMovableError(f"shard {shard} has had no owner yet"))
            else:
                try:
                    record = attrs.evolve(OwnerRecord.decoded(found.value, shard), pinned=hub)
                except ClusterRecordError as error:
                    done(error)
                    return
                self._coordination.write(shard_path(shard), record.encoded(), found.version, written)

        def written(result: Version | MetadataError) -> None:
            done(result if isinstance(result, MetadataError) else None)

        self._coordination.read(shard_path(shard), answered)

    def leave(self, done: Callable[[], None]) -> None:
        """Close all shards in order, release them, and leave the cluster."""
        self._left = done
        self.weigh(0.0)  # says, too, that it leaves in order: nobody misses it
        for timer in (self._settle_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        for claim in self._claims:
            if claim.state is ClaimState.OPEN:
                self._close(claim)
        self._leave_if_free()

    # Events of the coordination.

    def session_began(self, session: str) -> None:
        """See CoordinationEvents."""
        for claim in self._claims:
            claim.is_known = claim.is_damaged = False
            claim.seen_epoch = 0
            if claim.state is ClaimState.ABANDONED:
                claim.move(ClaimState.ELSEWHERE)
        self._choice = None
        self._host.resume()
        self._new_until_seconds = self._clock() + (START_SECONDS if self._expected_count else self._settle_seconds)
        self._unsettle()

    def session_uncertain(self) -> None:
        """See CoordinationEvents."""
        self._host.hold()

    def session_certain(self) -> None:
        """See CoordinationEvents."""
        self._host.resume()
        self._review_all()

    def session_ended(self, reason: str) -> None:
        """See CoordinationEvents."""
        self._host.hold()
        for claim in self._claims:
            if claim.state in _HELD:
                self._host.abandon(claim.shard)
            if claim.state in _HELD or claim.state is ClaimState.CLAIMING:
                claim.move(ClaimState.ABANDONED)
                self._host.owner_changed(claim.shard)
            elif claim.state is ClaimState.WANTED:
                claim.move(ClaimState.ELSEWHERE)
        self._leave_if_free()

    def hubs_changed(self, hubs: Mapping[str, Hub]) -> None:
        """See CoordinationEvents."""
        if hubs == self._hubs:
            return
        self._take_hubs(hubs)
        self._unsettle()
        self._review_all()
        self._read_all()

    # Choices.

    def _wanted_at(self, claim: _Claim) -> str | None:
        """Return the hub that is to have a shard; None: there is none, or not all owners are known."""
        owner = claim.owner
        if owner is not None and self._data_place is DataPlace.LOCAL:
            return owner.hub
        if self._choice is None:
            self._choice = self._chosen()
        return self._choice.get(claim.shard) or None

    def _chosen(self) -> Mapping[int, str]:
        """Return the hub that is to have each shard, by what is known of all owners. A shard whose record is damaged
        has no part in it: hubs that knew it before are to choose like those that have come since.
        """
        claims = [claim for claim in self._claims if not claim.is_damaged]
        if not all(claim.is_known for claim in claims):
            return {}
        owners = [OwnerRecord("", "", 0) if claim.owner is None else claim.owner for claim in claims]
        hubs = rendezvous.placed(
            self._hubs.values(), [owner.hub for owner in owners], [owner.pinned for owner in owners]
        )
        return {claim.shard: hub for claim, hub in zip(claims, hubs, strict=True)}

    def _set_record(self, claim: _Claim, record: Versioned[OwnerRecord] | None) -> None:
        claim.record = record
        self._choice = None

    def _see(self, claim: _Claim) -> None:
        """Remember an owner that is alive."""
        if claim.owner is not None and self._lives(claim.owner):
            claim.seen_epoch = claim.owner.epoch

    def _lives(self, owner: OwnerRecord) -> bool:
        hub = self._hubs.get(owner.hub)
        return hub is not None and hub.session == owner.session

    def _is_to_claim(self, claim: _Claim) -> bool:
        """Return whether this hub is to have a shard, and no other live hub has it still; or whether the record carries
        the session of this hub: a claim whose answer was lost. The hub then opens the shard, and hands it over.
        """
        owner = claim.owner
        if owner is not None and owner.hub == self._hub.name and owner.session == self._coordination.session:
            return True
        if self._wanted_at(claim) != self._hub.name or self._hub.name not in self._hubs:
            return False
        if owner is None:
            return self._is_settled and not self._waits_for_others
        if owner.hub == self._hub.name:
            return True
        if self._lives(owner):
            return False
        # An owner that this hub has seen is not about to come: it has left, or it is gone.
        return owner.epoch == claim.seen_epoch or not self._waits_for_others

    @property
    def _is_settled(self) -> bool:
        return self._is_complete or self._clock() >= self._settled_at_seconds

    @property
    def _waits_for_others(self) -> bool:
        """Whether hubs may be about to come that this new one has not seen."""
        return not self._is_complete and self._clock() < self._new_until_seconds

    @property
    def _is_complete(self) -> bool:
        """Whether no other hub can come."""
        return 0 < self._expected_count <= len(self._hubs)

    def _take_hubs(self, hubs: Mapping[str, Hub]) -> None:
        now_seconds = self._clock()
        for name in self._hubs.keys() - hubs.keys():
            if self._hubs[name].weight > 0:
                self._gone_since_seconds[name] = now_seconds
        for name in hubs:
            self._gone_since_seconds.pop(name, None)
        while len(self._gone_since_seconds) > GONE_MAX:
            del self._gone_since_seconds[next(iter(self._gone_since_seconds))]
        before, self._hubs = self._hubs, hubs
        self._choice = None
        if self._is_complete:
            self._new_until_seconds = now_seconds
        self._host.hubs_changed()
        for claim in self._claims:
            self._see(claim)
            owner = claim.owner
            if owner is not None and before.get(owner.hub) != hubs.get(owner.hub):
                self._host.owner_changed(claim.shard)

    def _unsettle(self) -> None:
        self._settled_at_seconds = self._clock() + self._settle_seconds
        if self._settle_timer is not None:
            self._settle_timer.cancel()
        if self._left is None:
            self._settle_timer = self._scheduling.call_later(self._settle_seconds, self._review_all)

    # What is to be done.

    def _review_all(self) -> None:
        for claim in self._claims:
            self._review(claim)

    def _review(self, claim: _Claim) -> None:
        """Claim a shard, or hand it over, if it is time to."""
        if self._left is not None or self._coordination.state is not SessionState.CERTAIN or not claim.is_known:
            return
        if claim.state is ClaimState.ELSEWHERE and self._is_to_claim(claim):
            self._look(claim, claim.move(ClaimState.WANTED))
        elif claim.state is ClaimState.OPEN and self._is_settled:
            if self._wanted_at(claim) in (None, self._hub.name):
                return
            if self._clock() >= self._read_at_seconds + FRESH_SECONDS:
                self._read_all()
            elif sum(one.state is ClaimState.CLOSING for one in self._claims) < self._moves_max:
                self._close(claim)

    def _read_all(self) -> None:
        """Read all records, and see what follows: hubs that know different owners choose differently."""
        if self._coordination.session is None or self._clock() < self._asked_at_seconds + FRESH_SECONDS:
            return
        self._asked_at_seconds = self._clock()
        self._readings_count += 1
        number = self._readings_count
        waiting = {claim.shard: claim.turn for claim in self._claims if claim.state in _STEADY}

        def answered(claim: _Claim, found: Versioned[bytes] | MetadataError | None) -> None:
            if number != self._readings_count or isinstance(found, MetadataError):
                return
            if claim.turn == waiting.pop(claim.shard):
                self._take_record(claim, found)
                self._compare(claim)
            if not waiting:
                self._read_at_seconds = self._clock()
                self._review_all()

        for claim in [self._claims[shard] for shard in waiting]:
            self._coordination.read(shard_path(claim.shard), partial(answered, claim))

    def _sweep(self) -> None:
        """Look again at what hints may have missed."""
        if self._left is not None:
            return
        self._sweep_timer = self._scheduling.call_later(self._sweep_seconds, self._sweep)
        if self._coordination.state is not SessionState.CERTAIN:
            return

        def answered(hubs: Mapping[str, Hub] | MetadataError) -> None:
            if not isinstance(hubs, MetadataError):
                self.hubs_changed(hubs)

        self._coordination.read_hubs(answered)
        self._sweeps_count += 1
        for claim in self._claims:
            owner = claim.owner
            settled_elsewhere = (
                claim.is_known
                and claim.state is ClaimState.ELSEWHERE
                and owner is not None
                and self._lives(owner)
                and owner.hub == self._wanted_at(claim) != self._hub.name
            )
            if not settled_elsewhere or claim.shard % SWEEP_PORTIONS == self._sweeps_count % SWEEP_PORTIONS:
                self._refresh(claim)

    def _refresh(self, claim: _Claim) -> None:
        """Read the record of a shard, and see what follows."""
        turn = claim.turn

        def answered(found: Versioned[bytes] | MetadataError | None) -> None:
            if claim.turn == turn and not isinstance(found, MetadataError):
                self._take_record(claim, found)
                self._compare(claim)
                self._review(claim)

        if claim.state in _STEADY and self._coordination.session is not None:
            self._coordination.read(shard_path(claim.shard), answered)

    def _take_record(self, claim: _Claim, found: Versioned[bytes] | None) -> None:
        before = claim.owner
        try:
            owner = None if found is None else OwnerRecord.decoded(found.value, claim.shard)
        except ClusterRecordError as error:  # damaged by hand: nobody claims it until it is repaired
            claim.is_known = False
            claim.is_damaged = True
            claim.words = str(error)
            self._choice = None
            return
        if not claim.is_known:
            self._choice = None
        claim.record = None if found is None or owner is None else Versioned(owner, found.version)
        claim.is_known, claim.is_damaged = True, False
        self._see(claim)
        if claim.owner != before:
            self._choice = None
            self._host.owner_changed(claim.shard)

    def _compare(self, claim: _Claim) -> None:
        """Abandon a shard whose record is another hub's: taken by force, or written by hand."""
        owner = claim.owner
        if claim.state in _HELD and (owner is None or (owner.epoch, owner.hub) != (claim.epoch, self._hub.name)):
            self._host.abandon(claim.shard)
            claim.move(ClaimState.ABANDONED)
            claim.move(ClaimState.ELSEWHERE)
            self._host.owner_changed(claim.shard)

    # A claim.

    def _look(self, claim: _Claim, turn: int) -> None:
        """Read the record, then the hubs, and decide."""
        found: list[Versioned[bytes] | None] = []

        def read(answer: Versioned[bytes] | MetadataError | None) -> None:
            if not isinstance(answer, MetadataError):
                found.append(answer)

        def read_hubs(hubs: Mapping[str, Hub] | MetadataError) -> None:
            if claim.turn != turn:
                return
            if isinstance(hubs, MetadataError) or not found:
                claim.move(ClaimState.ELSEWHERE)
                self._look_later(claim)
                return
            if hubs != self._hubs:
                self._take_hubs(hubs)
                self._unsettle()
            self._take_record(claim, found[0])
            if self._left is None and claim.is_known and self._is_to_claim(claim):
                self._claim(claim)
            else:
                claim.move(ClaimState.ELSEWHERE)
                self._leave_if_free()

        self._coordination.read(shard_path(claim.shard), read)
        self._coordination.read_hubs(read_hubs)

    def _look_later(self, claim: _Claim) -> None:
        self._scheduling.call_later(self._retry_seconds, partial(self._refresh, claim))

    def _claim(self, claim: _Claim) -> None:
        session = self._coordination.session
        if session is None:
            claim.move(ClaimState.ELSEWHERE)
            return
        owner = claim.owner
        pinned = "" if owner is None else owner.pinned
        # A record that was deleted by hand does not take this hub's own epochs back.
        epoch = 1 + max(claim.epoch, 0 if owner is None else owner.epoch)
        record = OwnerRecord(self._hub.name, session, epoch, pinned)
        version = Version.NEW if claim.record is None else claim.record.version
        turn = claim.move(ClaimState.CLAIMING)

        def written(result: Version | MetadataError) -> None:
            if claim.turn != turn:
                return
            if isinstance(result, MetadataError):
                claim.move(ClaimState.ELSEWHERE)
                if isinstance(result, MetadataFailedError):
                    self._look_later(claim)
                else:
                    self._refresh(claim)
                self._leave_if_free()
                return
            self._set_record(claim, Versioned(record, result))
            claim.epoch = record.epoch
            self._open(claim, claim.move(ClaimState.OPENING))

        self._coordination.write(shard_path(claim.shard), record.encoded(), version, written)

    def _open(self, claim: _Claim, turn: int) -> None:
        def opened(error: Exception | None) -> None:
            if claim.turn != turn:
                return
            if error is None:
                claim.words = ""
                claim.move(ClaimState.OPEN)
                self._host.owner_changed(claim.shard)
                if self._left is not None:
                    self._close(claim)
                else:
                    self._review(claim)
                return
            claim.words = str(error)
            if self._left is not None:
                self._release(claim, claim.move(ClaimState.CLOSING))
            elif isinstance(error, FencedError):
                self._scheduling.call_later(self._retry_seconds, partial(self._claim_anew, claim, turn))
            else:
                self._scheduling.call_later(self._retry_seconds, partial(self._open_again, claim, turn))

        self._host.open(claim.shard, claim.epoch, opened)

    def _open_again(self, claim: _Claim, turn: int) -> None:
        if claim.turn == turn:
            if self._left is not None:
                self._release(claim, claim.move(ClaimState.CLOSING))
            else:
                self._open(claim, turn)

    def _claim_anew(self, claim: _Claim, turn: int) -> None:
        """Release a shard whose store does not take the epoch, so that it is claimed with a later one: a store takes
        each once, and may have taken it in an attempt that failed.
        """
        if claim.turn == turn:
            self._release(claim, claim.move(ClaimState.CLOSING))

    # A hand-over.

    def _close(self, claim: _Claim) -> None:
        turn = claim.move(ClaimState.CLOSING)
        self._host.owner_changed(claim.shard)

        def closed() -> None:
            if claim.turn == turn:
                self._release(claim, turn)

        self._host.close(claim.shard, closed)

    def _release(self, claim: _Claim, turn: int) -> None:
        """Write the record without a session, until it is written or another hub's."""

        def read(found: Versioned[bytes] | MetadataError | None) -> None:
            if claim.turn != turn:
                return
            if isinstance(found, MetadataError):
                self._scheduling.call_later(self._retry_seconds, again)
                return
            self._take_record(claim, found)
            owner, record = claim.owner, claim.record
            if (
                owner is None
                or record is None
                or (owner.hub, owner.epoch) != (self._hub.name, claim.epoch)
                or not owner.session
            ):
                released(record)
            else:
                free = attrs.evolve(owner, session="")
                self._coordination.write(
                    shard_path(claim.shard), free.encoded(), record.version, partial(written, free)
                )

        def written(free: OwnerRecord, result: Version | MetadataError) -> None:
            if claim.turn != turn:
                return
            if isinstance(result, MetadataFailedError):
                self._scheduling.call_later(self._retry_seconds, again)
            elif isinstance(result, MetadataError):
                again()
            else:
                released(Versioned(free, result))

        def released(record: Versioned[OwnerRecord] | None) -> None:
            self._set_record(claim, record)
            claim.move(ClaimState.ELSEWHERE)
            self._host.owner_changed(claim.shard)
            self._review_all()
            self._leave_if_free()

        def again() -> None:
            if claim.turn == turn:
                self._release(claim, turn)

        self._coordination.read(shard_path(claim.shard), read)

    def _leave_if_free(self) -> None:
        """End the session once nothing stands on it."""
        busy = _HELD | {ClaimState.CLAIMING, ClaimState.WANTED}
        if self._left is not None and not self._is_over and not any(claim.state in busy for claim in self._claims):
            self._is_over = True
            self._coordination.close(self._left)

    # Words.

    def _refuse_move(self, what: str) -> None:
        if self._data_place is DataPlace.LOCAL:
            raise NotMovableError(
                f"shards of {self._hub.name} can't be {what}: their data is on the disk of the hub that has them. They "
                "move with an engine that all hubs share"
            )

    def _words(self, claim: _Claim) -> str:
        """Say why a shard has no owner at this moment."""
        what = f"shard {claim.shard}"
        owner = claim.owner
        if claim.state is ClaimState.OPENING:
            failed = f": {claim.words}" if claim.words else ""
            return f"{what} is being opened here{failed}"
        if claim.state is ClaimState.CLOSING:
            return f"{what} is leaving this hub"
        if self._coordination.session is None:
            return f"{what} is not known here: {self._coordination.words}"
        if not claim.is_known:
            return f"{what} is not known here" + (f": {claim.words}" if claim.words else " yet")
        if owner is None:
            return f"{what} has no owner yet"
        if owner.hub in self._hubs:
            return f"{what} is between two hubs"
        since_seconds = self._gone_since_seconds.get(owner.hub)
        gone = "not there" if since_seconds is None else f"gone for {self._clock() - since_seconds:.0f} s"
        if self._data_place is DataPlace.LOCAL:
            return f"{what} is on {owner.hub}, {gone}"
        wanted_at = self._wanted_at(claim)
        return f"{what} was on {owner.hub}, {gone}; " + (
            f"{wanted_at} takes over" if wanted_at else "no hub takes over"
        )
