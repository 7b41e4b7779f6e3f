"""Registry of the destinations of a broker: found or made by name, with their policies, wildcard consumers and
auto-deletion.

Wildcard consumers are attached to every destination that matches, later ones included. Wildcard and destination refer
to each other, so that either is removed without a search.

The sweep checks all destinations every SWEEP_SECONDS, in slices of SWEEP_COUNT with other work in between, so that a
hundred thousand idle ones do not stall the broker.

Bound: `destinations_max`; idle empty ones are swept away by their policy's `auto_delete_seconds`. A destination costs
about 6 KiB beside its messages (and as much again for each further priority in use): 600 MiB for the default
`destinations_max`, counted as memory of the broker (flow/upkeep.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Final

import attrs

from ..dispatcher import Periodic
from ..flow.upkeep import UPKEEP_FULL, UPKEEP_REMEDY
from .attachments import AttachmentAccount, AttachmentPool
from .browsing import QueueBrowser, Viewer
from .dead_letters import Courier, DeadLetterRouter, Rewrite, Unreachable
from .destination import ChangedLimit, Destination
from .durable_wildcards import DurablePatternError, DurableWildcards
from .durables import Done, Durable, DurableIds, DurableKeeper, DurableLimitError, DurableTable
from .environment import QueueEnvironment
from .message import Envelope
from .names import (
    HOST_SIGN,
    DestinationName,
    DestinationNameError,
    first_segment,
    host_prefix_of,
    meant_by,
    parse,
    without_host,
)
from .partitioned import Attachment
from .policy import LIMITS, QueuePolicy
from .queue import MessageQueue
from .retained import RetainedMessages, is_retained, policy_of_retained
from .selectors.selector import Selection
from .selectors.table import SelectorTable
from .statistics import RegistryStatistics
from .steps import Steps
from .subscription import Consumer
from .topic import Topic
from .turns import Turns
from .welcomes import Welcomes
from .wildcards import NameTrie, PatternTrie, path_of

ATTACHMENTS_MAX: Final = 250_000
SELECTORS_BYTES_MAX: Final = 64 << 20

SWEEP_SECONDS: Final = 5.0
"""Between the end of a sweep and the next."""

SWEEP_COUNT: Final = 100
DELETED_COST: Final = 7
"""Cost of deleting a partition, in destinations examined in one slice of a sweep."""

LIVE_POLICY: Final = frozenset(
    {
        "auto_delete_seconds",
        "dead_letter_expired",
        "durable_expires_seconds",
        "expires_max_ms",
        "prefetch_bytes",
        "prefetch_count",
        "redeliveries_max",
        "redelivery_backoff",
        "redelivery_delay_max_ms",
        "redelivery_delay_ms",
        "slow_after_seconds",
        "slow_consumer",
        "slow_measure_seconds",
        "slow_per_second",
        "slow_share",
        *LIMITS,
    }
)
"""Settings that may change for existing queues: those that are read at each use, and the limits. The others are fixed
when a queue is made.
"""


class DestinationLimitError(Exception):
    """The broker has as many destinations as it is configured for."""

    code = "too-many-destinations"
    """Machine-readable code for ERROR frames."""


class DestinationUpkeepError(DestinationLimitError):
    """Error of a destination for which `upkeep_bytes_max` has no room: connections, subscriptions and destinations take
    all of it.
    """

    code = UPKEEP_FULL


class DestinationFailedError(DestinationLimitError):
    """Error of a destination that was abandoned after a mistake of the broker."""

    code = "destination-failed"


class ShardAwayError(DestinationLimitError):
    """Error of a destination whose shard is not open in this process now. The message says why."""

    code = "shard-away"


class WildcardConsumer:
    """A consumer's interest in all destinations that match an address."""

    __slots__ = (
        "_registry",
        "account",
        "address",
        "admits",
        "attachments",
        "closed",
        "consumer",
        "exclusive",
        "number",
        "on_attach",
        "selection",
    )

    def __init__(
        self,
        registry: DestinationRegistry,
        address: DestinationName,
        consumer: Consumer,
        *,
        exclusive: bool,
        admits: Callable[[str], bool] | None = None,
        selection: Selection | None = None,
        account: AttachmentAccount | None = None,
    ) -> None:
        """`admits`: which of the names that match it gets; None: all of them. `selection`: which of their messages.
        `account`: counts its attachments.
        """
        self.selection = selection
        self._registry = registry
        self.address = address
        self.consumer = consumer
        self.exclusive = exclusive
        self.admits = admits
        self.account = account
        self.closed = False
        self.number = 0
        """Number of wildcards made so far, including this one."""
        self.on_attach: Callable[[str], None] | None = None
        """Called with the name of each destination right before the consumer is attached to it."""
        self.attachments: dict[Destination, Attachment] = {}

    def attaching(self) -> Iterator[None]:
        """Attach the consumer to the destinations that match and are admitted, in steps; also after `admits` has
        changed. Destinations made meanwhile are attached without help. Raises AttachmentLimitError.
        """
        for destination in self._registry.matching(self.address):
            if self.closed:
                return
            if destination is not None and destination not in self.attachments and not destination.queue.closed:
                if self.account is not None:
                    self.account.check()
                self.attach(destination)
                yield from repeat(None, len(destination.queue.partitions))
            else:
                yield

    def attach(self, destination: Destination) -> None:
        """Attach the consumer to a destination that matches, if that is admitted; from its beginning, if the wildcard
        is older than the destination and the beginning is still kept.
        """
        if self.admits is not None and not self.admits(destination.name):
            return
        if is_retained(destination.name):
            return  # to be looked at, not consumed
        if self.on_attach is not None:
            self.on_attach(destination.name)
        self.attachments[destination] = self._attach_to(destination)
        if destination.wildcards is None:
            destination.wildcards = {}
        destination.wildcards[self] = None

    def _attach_to(self, destination: Destination) -> Attachment:
        welcome = destination.welcome
        return destination.queue.attach(
            self.consumer,
            exclusive=self.exclusive,
            selection=self.selection,
            account=self.account,
            from_beginning=welcome is not None and welcome.is_for(self),
        )

    def detach(self, destination: Destination) -> None:
        """Detach from a destination that is gone, or because this wildcard is closed. O(1), plus detaching its
        partitions.
        """
        assert destination.wildcards is not None, "they know each other"
        del destination.wildcards[self]
        self.attachments.pop(destination).close()
        if destination.welcome is not None and not self.closed:
            destination.welcome.left[id(self.consumer)] = self.consumer

    def reviewing(self, admits: Callable[[str], bool] | None) -> Iterator[None]:
        """Apply a changed `admits`: detach from destinations that are not admitted any more, and attach to those that
        are. Raises AttachmentLimitError.
        """
        self.admits = admits
        for destination in list(self.attachments) if admits is not None else ():
            if self.closed:
                return
            if destination in self.attachments and admits is not None and not admits(destination.name):
                self.detach(destination)
                yield from repeat(None, len(destination.queue.partitions))
            else:
                yield
        yield from self.attaching()

    @property
    def awaits_disk(self) -> bool:
        """Whether a destination has more that is being read from the disk."""
        return any(attachment.awaits_disk for attachment in self.attachments.values())

    def closing(self) -> Iterator[None]:
        """Detach from all destinations, in steps; none is attached from the first step on. A second call does nothing.
        A consumer that is closing has no room, see `StompSubscription.room`.
        """
        if not self.closed:
            self.closed = True
            self._registry.forget_wildcard(self)
        while self.attachments:
            destination = next(reversed(self.attachments))
            self._registry.environment.carefully(partial(self.detach, destination))
            yield from repeat(None, len(destination.queue.partitions))

    def close(self) -> None:
        """Detach from all of them at once."""
        for _step in self.closing():
            pass


class DurableWildcard(WildcardConsumer):
    """A consumer that reads as a durable subscription from all topics that match."""

    __slots__ = ("_is_reading", "durable", "is_new")

    def __init__(
        self,
        registry: DestinationRegistry,
        address: DestinationName,
        consumer: Consumer,
        durable: Durable,
        *,
        is_new: bool,
        admits: Callable[[str], bool] | None,
        selection: Selection | None,
        account: AttachmentAccount,
    ) -> None:
        """`is_new`: the durable subscription was made for this consumer."""
        super().__init__(
            registry, address, consumer, exclusive=False, admits=admits, selection=selection, account=account
        )
        self.durable = durable
        self.is_new = is_new
        self._is_reading = True

    def attach(self, destination: Destination) -> None:
        """Attach the consumer to a topic that matches. What is kept of one that it may not receive from is given up.
        Raises DurableLimitError.
        """
        if self.admits is not None and not self.admits(destination.name):
            self._registry.give_up(self.durable, destination)
            return
        self._registry.cover(self.durable, destination)
        super().attach(destination)

    def _attach_to(self, destination: Destination) -> Attachment:
        return destination.queue.attach(
            self.consumer,
            durable_id=self.durable.durable_id,
            shares=self.durable.is_shared,
            selection=self.selection,
            account=self.account,
        )

    def closing(self) -> Iterator[None]:
        """Stop reading, in steps; the positions stay."""
        self._registry.durable_wildcards.left(self.durable, self)
        yield from super().closing()
        if self._is_reading:
            self._is_reading = False
            self._registry.durables.detached(self.durable)


class DurableAttachment:
    """A consumer that reads as a durable subscription."""

    __slots__ = ("_attachment", "_registry", "durable")

    def __init__(self, registry: DestinationRegistry, durable: Durable, attachment: Attachment) -> None:
        self._registry = registry
        self._attachment = attachment
        self.durable = durable

    @property
    def queues_count(self) -> int:
        """Number of partitions from which it takes now, and one for `last_seen_ms`: detaching takes as many steps."""
        return self._attachment.queues_count + 1

    def close(self) -> None:
        """Stop reading; the position stays. A second call does nothing."""
        if self.durable.attached and not self._attachment.closed:
            self._attachment.close()
            self._registry.durables.detached(self.durable)


class DestinationRegistry:
    """Destinations by canonical name."""

    def __init__(
        self,
        environment: QueueEnvironment,
        policy_for: Callable[[DestinationName], QueuePolicy],
        *,
        destinations_max: int = 100_000,
        durables_max: int = 10_000,
        durable_keeper: DurableKeeper | None = None,
        rewrite: Rewrite | None = None,
        dead_letter_queues: Iterable[str] = (),
        attachments_max: int = ATTACHMENTS_MAX,
        selectors_bytes_max: int = SELECTORS_BYTES_MAX,
        own_segments: Iterable[str] = (),
        durable_ids: DurableIds | None = None,
        environment_of: Callable[[DestinationName], QueueEnvironment] | None = None,
        courier: Courier | None = None,
        host_limits: Mapping[str, int] | None = None,
    ) -> None:
        """`durable_keeper`: where durable subscriptions are kept (None: they live as long as the broker); `rewrite`
        changes headers (None: nothing is dead-lettered); `dead_letter_queues`: all that any policy may name;
        `own_segments`: see `check_prefix`; `durable_ids`: see DurableTable; `environment_of`: returns the environment
        of a destination's shard, as `completed` (None: there is one shard); `courier` takes dead letters to other
        hubs (None: there are none); `host_limits`: `destinations_max` of virtual hosts, by the prefix of their names.
        """
        if rewrite is not None:
            router = DeadLetterRouter(
                self, dead_letter_queues, rewrite=rewrite, now_ms=environment.now_ms, courier=courier
            )
            environment = attrs.evolve(environment, dead_letters=router)
        self.steps = Steps(environment.scheduling)
        """Executor of the long work of subscriptions and destinations."""
        self.turns = Turns(environment.clock)
        """Turns of transactions without a store."""
        self.environment = environment = attrs.evolve(environment, in_steps=self.steps.do)
        """Environment of queues, with dead letters and the executor of long work."""
        self._environment_of = environment_of
        self.away: dict[int | None, str] = {}
        """Shards of which no destination is given to clients now, and why."""
        self._policy_for = policy_for
        self._own_segments = frozenset(own_segments)
        self._policies_age = 0
        """Number of times that policies have been replaced."""
        self._router = environment.dead_letters
        self.destinations_max = destinations_max
        self._host_limits = dict(host_limits or {})
        self._host_counts: dict[str, int] = {}
        """Destinations by the prefix of their virtual host, as long as some host has a limit."""
        self.attachments = AttachmentPool(attachments_max, manager=environment.manager, clock=environment.clock)
        self._account = AttachmentAccount(self.attachments)
        self.selectors = SelectorTable(selectors_bytes_max, manager=environment.manager, clock=environment.clock)
        self._kept_selections: dict[int, Selection] = {}
        """Selection of each durable subscription whose consumer is away, by id."""
        self._wildcards: PatternTrie[WildcardConsumer] = PatternTrie(environment.manager.keep)
        self._wildcards_made_count = 0
        self._welcomes = Welcomes(self._wildcards, self.steps, environment.carefully)
        self._names: NameTrie[Destination] = NameTrie(environment.manager.keep)
        self._sweeps = Periodic(environment.scheduling.call_later, SWEEP_SECONDS, self._sweep_and_go_on)
        self.retained = RetainedMessages(self)
        """Last messages of topics, for later subscribers."""
        self._to_sweep: list[Destination] = []
        self._durables_to_sweep: list[Durable] = []
        self.destinations: dict[str, Destination] = {}
        self.durables = DurableTable(
            durables_max=durables_max, now_ms=environment.now_ms, keeper=durable_keeper, ids=durable_ids
        )
        self.durable_wildcards: DurableWildcards[Destination] = DurableWildcards(environment.manager.keep)
        """Durable subscriptions to wildcards, which are among `durables`, too."""
        self.made_count = 0
        self.deleted_count = 0
        self.on_make: Callable[[Destination], None] | None = None
        """Callback after a client has made a destination."""
        self.on_delete: Callable[[Destination], None] | None = None
        """Callback before a destination is deleted, which may add up its counters."""
        self._abandoned: set[str] = set()
        """Destinations of which the store may have further elements, unknown until the next start."""
        self.unheard_count = 0
        """Messages to temporary destinations whose owner is gone."""

    @property
    def dead_letters(self) -> DeadLetterRouter | None:
        """Router of messages that are given up; None: there are no dead letters."""
        return self._router

    def check_shard(self, address: DestinationName) -> None:
        """Raise ShardAwayError if the shard of a destination is not open, or about to be closed, and it needs that."""
        environment = self.environment_of(address)
        shard = environment.shard
        if shard in self.away and not environment.is_guest:
            raise ShardAwayError(self.away[shard])

    def leave(self, shard: int, reason: str) -> None:
        """Forget the destinations of a shard that is closed: what is stored of them stays. Wildcards go on without
        them, and all other consumers have left.
        """
        for destination in [each for each in self.destinations.values() if each.environment.shard == shard]:
            self.delete(destination, reason, keep=True)
        self.durables.leave(lambda topic: self.environment_of(parse(topic)).shard == shard)

    def completed(self, environment: QueueEnvironment) -> QueueEnvironment:
        """Return the environment of a shard with dead letters and the executor of long work."""
        return attrs.evolve(environment, dead_letters=self._router, in_steps=self.steps.do)

    def environment_of(self, address: DestinationName) -> QueueEnvironment:
        """Return the environment that a destination of this name has, or would have."""
        return self.environment if self._environment_of is None else self._environment_of(address)

    def start(self) -> None:
        """Begin to sweep idle destinations."""
        self._sweeps.start()

    def close(self) -> None:
        """Delete everything and sweep no more."""
        self._sweeps.stop()
        for destination in list(self.destinations.values()):
            self.delete(destination, "the broker stops", keep=True)
        self.steps.finish()
        for limited in (self.attachments, self.selectors):
            if limited.is_open:
                limited.close()

    def replace_policies(
        self,
        policy_for: Callable[[DestinationName], QueuePolicy],
        *,
        dead_letter_queues: Iterable[str],
        destinations_max: int,
        attachments_max: int = ATTACHMENTS_MAX,
        selectors_bytes_max: int = SELECTORS_BYTES_MAX,
        own_segments: Iterable[str] = (),
    ) -> None:
        """Replace policies and limits, see the constructor. New destinations have all of them; existing ones have the
        settings in `LIVE_POLICY` with the next sweep: within seconds, without stalling the broker.
        """
        self._policy_for = policy_for
        self._own_segments = frozenset(own_segments)
        self._policies_age += 1
        self.destinations_max = destinations_max
        self.attachments.resize(attachments_max)
        self.selectors.resize(selectors_bytes_max)
        if self._router is not None:
            self._router.name_queues(dead_letter_queues)

    def _follow_policies(self, destination: Destination) -> None:
        destination.policies_age = self._policies_age
        wanted = self._policy_for(destination.address)
        kept = {
            limit: changed
            for limit, changed in destination.changed_limits.items()
            if changed.configured == getattr(wanted, limit) != changed.value
        }
        self._apply(destination, wanted, kept)

    def change_limits(self, destination: Destination, limits: Mapping[str, int | None]) -> None:
        """Change limits of one destination (`policy.LIMITS`) until the next start, or until the configuration gives
        other ones; what is configured ends a change. Raises ValueError for a value that no configuration may have;
        nothing changes then.
        """
        if destination.policies_age != self._policies_age:
            self._follow_policies(destination)
        wanted = self._policy_for(destination.address)
        changed = dict(destination.changed_limits)
        for limit, value in limits.items():
            configured = getattr(wanted, limit)
            changed.pop(limit, None)
            if value != configured:
                changed[limit] = ChangedLimit(value, configured)
        self._apply(destination, wanted, changed)

    def declare(self, address: DestinationName, limits: Mapping[str, int], *, goes_with_consumers: bool) -> None:
        """Tighten limits of one destination (of LIVE_POLICY), as its consumer declares, as long as it exists or until
        another consumer declares other ones; what is configured is never exceeded. `goes_with_consumers`: delete it,
        with its messages, within SWEEP_SECONDS or so after its last consumer has left. Does nothing if it is gone.
        """
        destination = self.destinations.get(address.canonical)
        if destination is None:
            return
        destination.goes_with_consumers |= goes_with_consumers
        if limits:
            destination.declared = {**destination.declared, **limits}
            self._follow_policies(destination)

    @staticmethod
    def _apply(destination: Destination, wanted: QueuePolicy, changed: Mapping[str, ChangedLimit]) -> None:
        """Apply a configured policy, as far as it may change, with these limits in place of its own."""
        if is_retained(destination.name):
            wanted = policy_of_retained(wanted)
        live = {name: getattr(wanted, name) for name in LIVE_POLICY}
        for limit, value in destination.declared.items():
            live[limit] = value if live[limit] is None else min(live[limit], value)
        live |= {limit: change.value for limit, change in changed.items()}
        policy = attrs.evolve(destination.policy, **live)
        destination.changed_limits = changed
        if policy == destination.policy:
            return
        destination.policy = policy
        for queue in destination.queues:
            queue.follow(attrs.evolve(queue.policy, **live))

    def get(self, address: DestinationName, *, is_stored: bool = False, is_ours: bool = False) -> Destination:
        """Return the destination of this name, made if need be. Raises DestinationLimitError, but not if it
        `is_stored`: its messages of an earlier run need a queue even if the limit was lowered since. `is_ours`: the
        broker makes it, not a client, to keep existing messages.
        """
        if self.away and not is_stored:
            self.check_shard(address)
        destination = self.destinations.get(address.canonical)
        if destination is None:
            if address.canonical in self._abandoned:
                raise DestinationFailedError(
                    f"{address.canonical} was closed after a bug of the broker: confirmed messages are safe, and "
                    "available again after a restart"
                )
            if len(self.destinations) >= self.destinations_max and not is_stored:
                raise DestinationLimitError(
                    f"cannot make {address.canonical}: the broker holds {self.destinations_max} destinations already "
                    "(destinations_max): reuse names, or lower auto_delete_seconds"
                )
            if not is_stored:
                self._check_host(address.canonical)
            if not is_stored and not is_ours:
                self.check_upkeep(address.canonical)
            durables = () if is_stored else self._durables_for(address)
            policy = self._policy_for(address)
            if is_retained(address.canonical):
                policy = policy_of_retained(policy)
                self.retained.made(address.canonical, is_stored=is_stored)
            if is_stored and policy.kind == "relay":
                policy = attrs.evolve(policy, kind="queue")  # a relay can't keep stored messages
            destination = Destination(address, policy, self.environment_of(address))
            self.destinations[address.canonical] = destination
            self._count_in_host(destination, 1)
            self._names.put(path_of(address.canonical), destination)
            self.made_count += 1
            for durable in durables:
                self._begin(destination, durable)
                self.durable_wildcards.cover(durable, destination)
            self._welcomes.begin(destination, self._wildcards_made_count)
            if self.on_make is not None and not is_stored and not is_ours:
                self.on_make(destination)
        destination.idle_since_seconds = None
        return destination

    def _check_host(self, name: str) -> None:
        """Raise DestinationLimitError if the virtual host of a new destination has as many as it may have."""
        prefix = host_prefix_of(name)
        limit = self._host_limits.get(prefix)
        if limit is not None and self._host_counts.get(prefix, 0) >= limit:
            host = prefix.removeprefix(HOST_SIGN) or "/"
            raise DestinationLimitError(
                f"cannot make {name}: the virtual host {host} holds {limit} destinations already (destinations_max of "
                "[[virtual_hosts]]): reuse names, or lower auto_delete_seconds"
            )

    def _count_in_host(self, destination: Destination, change: int) -> None:
        if self._host_limits:
            prefix = host_prefix_of(destination.name)
            count = self._host_counts[prefix] = self._host_counts.get(prefix, 0) + change
            if not count:
                del self._host_counts[prefix]

    def _durables_for(self, address: DestinationName) -> Iterable[Durable]:
        """Return the durable subscriptions to wildcards that a new destination is for. Raises DestinationLimitError if
        one of them has no room for it: nothing is missed in silence.
        """
        if not len(self.durable_wildcards) or not address.kind.is_topic or address.is_temporary:
            return ()
        durables = self.durable_wildcards.wanting(address.canonical)
        try:
            self.durable_wildcards.check(durables, address.canonical)
        except DurableLimitError as error:
            raise DestinationLimitError(f"cannot make {address.canonical}: {error}") from None
        return durables

    def check_prefix(self, address: DestinationName, *, to_send: bool) -> None:
        """Raise DestinationNameError for `/`, and for a name whose prefix is probably a typing error, such as
        `/queu/a`: no consumer would receive its messages. Names whose first segment the configuration uses
        (`own_segments`) are allowed; and existing messages can still be received.
        """
        name = address.canonical
        said = without_host(name)
        if not said.strip("/") and (to_send or name not in self.destinations):
            raise DestinationNameError(f"the destination {said!r} has no name: write /queue/NAME or /topic/NAME")
        meant = meant_by(name)
        if not meant or first_segment(said) in self._own_segments or (name in self.destinations and not to_send):
            return
        raise DestinationNameError(
            f"{said!r} begins with no known prefix: did you mean {meant}? A destination that is really called so has "
            "to be named in [[destinations]] of the broker's configuration"
        )

    def check_upkeep(self, what: str) -> None:
        """Raise DestinationUpkeepError if nothing new is to be made."""
        why_not = self.environment.manager.why_not(what)
        if why_not:
            raise DestinationUpkeepError(f"{why_not}. {UPKEEP_REMEDY}")

    def queue_for_dead_letters(self, name: str, head: Envelope) -> MessageQueue:
        """The partition for messages with this head of a dead-letter queue. Raises Unreachable, also for a relay, which
        keeps nothing: the configuration refuses relays there, but one may be left of an earlier configuration. That is
        not kept from being forgotten.
        """
        address = parse(name)
        there = self.destinations.get(address.canonical)
        if (self._policy_for(address) if there is None else there.policy).kind == "relay":
            raise Unreachable(
                f"{name} is a relay, which keeps nothing: dead letters wait until it is a queue. One configured "
                "as a queue now becomes it after it was empty and unused for auto_delete_seconds, or with a restart"
            )
        try:
            return self.get(address, is_ours=True).partition_for(head)
        except DestinationLimitError as error:
            raise Unreachable(str(error)) from None

    def durable_names(self, durable_id: int) -> tuple[str, str]:
        """Name and client id of this durable subscription; empty if it is being removed. O(durables)."""
        found = next((durable for durable in self.durables if durable.durable_id == durable_id), None)
        return ("", "") if found is None else (found.name, found.client_id)

    def policy_for(self, address: DestinationName) -> QueuePolicy:
        """Return the policy that a destination of this name has, or would have."""
        return self._policy_for(address)

    def attach(
        self,
        address: DestinationName,
        consumer: Consumer,
        *,
        exclusive: bool = False,
        admits: Callable[[str], bool] | None = None,
        selection: Selection | None = None,
        account: AttachmentAccount | None = None,
    ) -> Attachment | WildcardConsumer:
        """Attach a consumer to the destination(s); `admits` returns whether it may be attached to a destination that a
        wildcard matches, now and later (None: to all); `selection`: selection of messages (None: all); `account` counts
        its attachments (None: only the pool of the broker does). Raises DestinationLimitError, AttachmentLimitError.

        O(destinations that match) for a wildcard: `attach_wildcard` does it in steps.
        """
        if not address.wildcard:
            account = account or self._account
            account.check()
            queue = self.get(address).queue
            return queue.attach(consumer, exclusive=exclusive, selection=selection, account=account)
        wildcard = self.attach_wildcard(
            address, consumer, exclusive=exclusive, admits=admits, selection=selection, account=account
        )
        for _step in wildcard.attaching():
            pass
        return wildcard

    def attach_wildcard(
        self,
        address: DestinationName,
        consumer: Consumer,
        *,
        exclusive: bool = False,
        admits: Callable[[str], bool] | None = None,
        selection: Selection | None = None,
        account: AttachmentAccount | None = None,
    ) -> WildcardConsumer:
        """Attach a consumer to all destinations that a wildcard covers. To attach it to those that exist already, do
        all steps of the result's `attaching`; destinations that are made from now on are attached without help.
        """
        wildcard = WildcardConsumer(
            self,
            address,
            consumer,
            exclusive=exclusive,
            admits=admits,
            selection=selection,
            account=account or self._account,
        )
        self._enter(wildcard)
        return wildcard

    def _enter(self, wildcard: WildcardConsumer) -> None:
        """Number a wildcard consumer, and have it attached to what is made from now on."""
        self._wildcards_made_count += 1
        wildcard.number = self._wildcards_made_count
        self._wildcards.add(path_of(wildcard.address.canonical), wildcard)

    def matching(self, address: DestinationName) -> Iterator[Destination | None]:
        """Yield the destinations that a wildcard covers now; None: a step without a result. The iteration may be
        continued later: see wildcards.py.
        """
        return self._names.matching(path_of(address.canonical))

    def browse(self, address: DestinationName, viewer: Viewer, selection: Selection | None = None) -> QueueBrowser:
        """Show a viewer the messages that a queue holds now and that `selection` selects (None: all): highest priority
        first. A queue that does not exist is not made.
        """
        destination = self.destinations.get(address.canonical)
        partitions = [] if destination is None else list(destination.queue.partitions.values())
        partitions.sort(key=lambda queue: (-queue.priority, queue.part))
        return QueueBrowser(address.canonical, partitions, viewer, self.environment, selection)

    def attach_durable(
        self,
        address: DestinationName,
        consumer: Consumer,
        client_id: str,
        name: str,
        selection: Selection | None = None,
        account: AttachmentAccount | None = None,
    ) -> DurableAttachment:
        """Let this consumer read as a durable subscription of a topic, from where it stopped. The selection is a part
        of it. `durables.keep` has yet to be told of it. Raises DurableNameError, DurableInUseError,
        DurableSelectorError, DurableLimitError, AttachmentLimitError, DestinationLimitError, ShardAwayError.
        """
        account = account or self._account
        account.check()
        environment = self.environment_of(address)
        if environment.is_guest:
            raise ShardAwayError(self.away[environment.shard])  # where its position is kept
        destination = self.get(address)
        selector = "" if selection is None else selection.selector.text.strip()
        durable, is_new = self.durables.attach(client_id, name, address.canonical, selector)
        if is_new:
            self._begin(destination, durable)
        if selection is not None and durable.durable_id not in self._kept_selections:
            self._kept_selections[durable.durable_id] = selection.again()
        attachment = destination.queue.attach(
            consumer, durable_id=durable.durable_id, shares=durable.is_shared, selection=selection, account=account
        )
        return DurableAttachment(self, durable, attachment)

    def attach_durable_wildcard(
        self,
        address: DestinationName,
        consumer: Consumer,
        client_id: str,
        name: str,
        *,
        admits: Callable[[str], bool] | None = None,
        selection: Selection | None = None,
        account: AttachmentAccount | None = None,
    ) -> DurableWildcard:
        """Let this consumer read as a durable subscription from all topics that match, as `attach_wildcard` does; and
        `attach_durable`, with the same errors, and DurablePatternError.
        """
        if self._environment_of is not None:
            raise DurablePatternError(
                f"a durable subscription to the wildcard {address.canonical}: a broker with several shards or hubs has "
                "none, for each shard stores its own topics"
            )
        selector = "" if selection is None else selection.selector.text.strip()
        if self.durables.find(client_id, name, address.canonical) is None:
            self.durable_wildcards.check_new()
        durable, is_new = self.durables.attach(client_id, name, address.canonical, selector)
        if is_new:
            self.durable_wildcards.add(durable)
        if selection is not None and durable.durable_id not in self._kept_selections:
            self._kept_selections[durable.durable_id] = selection.again()
        wildcard = DurableWildcard(
            self,
            address,
            consumer,
            durable,
            is_new=is_new,
            admits=admits,
            selection=selection,
            account=account or self._account,
        )
        self._enter(wildcard)
        self.durable_wildcards.joined(durable, wildcard)
        return wildcard

    def cover(self, durable: Durable, destination: Destination) -> None:
        """Give a durable subscription to a wildcard its readers in a topic, behind all that is there, unless it has
        them. Raises DurableLimitError.
        """
        if durable.durable_id not in destination.durable_ids:
            self.durable_wildcards.check([durable], destination.name)
            self._begin(destination, durable)
            self.durable_wildcards.cover(durable, destination)

    def give_up(self, durable: Durable, destination: Destination) -> None:
        """Remove the readers of a durable subscription to a wildcard from a topic that no consumer of it may receive
        from.
        """
        if durable.durable_id not in destination.durable_ids:
            return
        is_read = any(
            isinstance(wildcard, DurableWildcard) and wildcard.durable is durable
            for wildcard in destination.wildcards or ()
        )
        if not is_read and not self.durable_wildcards.is_admitted(durable, destination.name):
            destination.durable_ids.discard(durable.durable_id)
            self.durable_wildcards.leave(durable, destination)
            self.environment.do_in_steps(destination.name, _removing([destination], durable.durable_id))

    def topics_of(self, durable: Durable) -> Collection[Destination]:
        """Return the topics that a durable subscription is for and that are there, TOPICS_MAX at most."""
        if parse(durable.destination).wildcard:
            return self.durable_wildcards.topics(durable)
        destination = self.destinations.get(durable.destination)
        return () if destination is None else (destination,)

    @staticmethod
    def _begin(destination: Destination, durable: Durable) -> None:
        """Add a durable subscription to all existing partitions; new ones add it when they are made."""
        for partition in destination.queue.partitions.values():
            assert isinstance(partition, Topic), "only topics have durable subscriptions"
            partition.readers.add(durable.durable_id)
        destination.durable_ids.add(durable.durable_id)

    def restore_durable(self, durable: Durable, address: DestinationName, *, exactly: bool = True) -> None:
        """An earlier run left this one; its topic's partitions have their readers already. `exactly`: see
        `DurableTable.restore`.
        """
        self.durables.restore(durable, exactly=exactly)
        if not address.wildcard:
            self._restore_readers(durable, self.get(address, is_stored=True))
            return
        self.durable_wildcards.add(durable)
        for destination in self.matching(address):
            if destination is not None:
                self._restore_readers(durable, destination)
                self.durable_wildcards.cover(durable, destination)

    @staticmethod
    def _restore_readers(durable: Durable, destination: Destination) -> None:
        destination.durable_ids.add(durable.durable_id)
        for partition in destination.queue.partitions.values():
            assert isinstance(partition, Topic), "only topics have durable subscriptions"
            if durable.durable_id not in partition.readers.by_id:
                partition.readers.add(durable.durable_id)

    def remove_durable(self, durable: Durable, done: Done) -> None:
        """Remove a durable subscription, with the messages that only it has yet to read. No consumer may be attached.
        `done` is called, perhaps at once, when it is deleted on disk, where its readers follow with the next flush; or
        with the error: then it exists as before.
        """

        def forgotten(error: Exception | None) -> None:
            if not self.durables.has(durable):
                self._end(durable)
            done(error)

        self.durables.remove(durable, forgotten)

    def _end(self, durable: Durable) -> None:
        """Remove the readers of a durable subscription, in steps where there are many."""
        selection = self._kept_selections.pop(durable.durable_id, None)
        if selection is not None:
            selection.close()
        topics = self.topics_of(durable)
        if parse(durable.destination).wildcard:
            topics = tuple(topics)
            self.durable_wildcards.discard(durable)
        for topic in topics:
            topic.durable_ids.discard(durable.durable_id)
        if topics:
            self.environment.do_in_steps(durable.destination, _removing(topics, durable.durable_id))

    def forget_wildcard(self, wildcard: WildcardConsumer) -> None:
        """Called by `WildcardConsumer.close`."""
        self._wildcards.discard(path_of(wildcard.address.canonical), wildcard)

    def delete(self, destination: Destination, reason: str, *, keep: bool = False) -> None:
        """Delete a destination with all its messages (`keep`: stored ones stay in the store); its subscriptions are
        cancelled. Does nothing if it is deleted already.

        Its name is free before any callback, so a callback may ask for it again and gets a new destination.
        """
        if self.destinations.get(destination.name) is not destination:
            return  # also if there is another one of its name by now
        del self.destinations[destination.name]
        self._count_in_host(destination, -1)
        self._names.remove(path_of(destination.name))
        self.deleted_count += 1
        self.retained.gone(destination.name)
        self.durable_wildcards.forget(destination)
        if self.on_delete is not None:
            self.on_delete(destination)
        self._welcomes.forget(destination)
        destination.close(reason, keep=keep)
        self.environment.do_in_steps(destination.name, self._detaching(destination))

    def _detaching(self, destination: Destination) -> Iterator[None]:
        """Detach the wildcards from a destination that is gone, in steps."""
        while destination.wildcards:
            self.environment.carefully(partial(next(reversed(destination.wildcards)).detach, destination))
            yield from repeat(None, len(destination.queue.partitions))

    def abandon(self, destination: Destination, reason: str) -> None:
        """Close a destination as it is. With a store its name is refused from now on: the next start recovers its
        messages.
        """
        if destination.environment.store is not None:
            self._abandoned.add(destination.name)
        self.delete(destination, reason, keep=True)

    def sweep(self) -> bool:
        """Check the next destinations and durable subscriptions, at most SWEEP_COUNT, and delete those that have been
        idle, or abandoned, for their policy's time. Returns whether there are more, which the next call checks. The
        first call of a sweep is O(all of them), but cheap.
        """
        if not self._to_sweep and not self._durables_to_sweep:
            self._to_sweep = list(self.destinations.values())
            self._durables_to_sweep = list(self.durables)
            self.durables.try_again()
        now_seconds = self.environment.clock()
        left_count = SWEEP_COUNT
        while self._to_sweep and left_count > 0:
            destination, left_count = self._to_sweep.pop(), left_count - 1
            if self.destinations.get(destination.name) is destination:
                self.environment.carefully(partial(self._sweep_one, destination, now_seconds))
                if destination.name not in self.destinations:
                    left_count -= DELETED_COST * len(destination.queue.partitions)
        while self._durables_to_sweep and left_count > 0:
            durable, left_count = self._durables_to_sweep.pop(), left_count - 1
            self.environment.carefully(partial(self._sweep_durable, durable))
            if not self.durables.has(durable):
                left_count -= DELETED_COST
        return bool(self._to_sweep or self._durables_to_sweep)

    def _sweep_durable(self, durable: Durable) -> None:
        if not self.durables.has(durable):
            return
        destination = self.destinations.get(durable.destination)
        policy = None if destination is None else destination.policy
        address = parse(durable.destination)
        if address.wildcard:
            policy = self._policy_for(address)
        if policy is not None and self.durables.abandoned(durable, policy.durable_expires_seconds):
            self.remove_durable(durable, _tried_again_later)

    def _sweep_one(self, destination: Destination, now_seconds: float) -> None:
        if destination.policies_age != self._policies_age:
            self._follow_policies(destination)
        if destination.is_left:
            self.delete(destination, "its last consumer has left (auto-delete)")
            return
        limit_seconds = destination.policy.auto_delete_seconds
        if limit_seconds is None or not destination.is_deletable:
            destination.idle_since_seconds = None
        elif destination.idle_since_seconds is None:
            destination.idle_since_seconds = now_seconds
        elif now_seconds - destination.idle_since_seconds >= limit_seconds:
            self.delete(destination, "it was empty and idle")

    def _sweep_and_go_on(self) -> None:
        if self.sweep():
            self._sweeps.start(0.0)

    def statistics(self) -> RegistryStatistics:
        return RegistryStatistics(
            destinations_count=len(self.destinations),
            wildcards_count=len(self._wildcards),
            made_count=self.made_count,
            deleted_count=self.deleted_count,
        )


def _removing(topics: Iterable[Destination], durable_id: int) -> Iterator[None]:
    """Remove the readers of a durable subscription from its topics, in steps."""
    for topic in topics:
        for partition in list(topic.queue.partitions.values()):
            if isinstance(partition, Topic) and not partition.closed:
                partition.remove_reader(durable_id)
            yield


def _tried_again_later(_error: Exception | None) -> None:
    """Ignore the result: a subscription that can't be removed is found by the next sweep."""
