"""All settings: one frozen object per section, composed in `Config`.

Each field carries its documentation as metadata (`fields`). Sizes are bytes and durations seconds or milliseconds, as
the name says; `units` reads "64 MiB" and "30 s" for them. Validators state the allowed values and name the field. The
objects of other folders (`StompLimits`, `QueuePolicy`, `DispatcherConfig`, `SecurityConfig`) follow the same convention
and live with the code they configure.

Not here: reading files (`sources`), turning plain data into these objects (`structure`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import attrs

from sluiceway import part_functions
from sluiceway.config.admin import AdminConfig
from sluiceway.config.cluster import ClusterConfig
from sluiceway.config.fields import copied, is_address, not_blank, section, split_address
from sluiceway.config.former import former_arguments
from sluiceway.config.logging import LoggingConfig
from sluiceway.config.thrift import ThriftConfig
from sluiceway.config.virtual_hosts import VirtualHost, hosts, hosts_differ
from sluiceway.dispatcher.config import DispatcherConfig
from sluiceway.metrics.config import MetricsConfig
from sluiceway.protocols.settings import TlsConfig, WebSocketConfig
from sluiceway.protocols.stomp.dialects import is_foreign, known_as
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues import names
from sluiceway.queues.policy import FUNCTION_PREFIX, SLOW_LIMITS, QueuePolicy
from sluiceway.queues.registry import ATTACHMENTS_MAX, SELECTORS_BYTES_MAX
from sluiceway.queues.settings import about, at_least, field, one_of, or_none
from sluiceway.queues.wildcards import PatternTrie
from sluiceway.regions.config import RegionsConfig
from sluiceway.security.config import Rates, SecurityConfig
from sluiceway.store.config import StoreConfig
from sluiceway.store.log_storage import LogStorageConfig
from sluiceway.tracing.config import TracingConfig
from sluiceway.trails.config import TrailsConfig

PROTOCOLS: Final = ("stomp", "websocket")
CLIENT_ID_POLICIES: Final = ("share", "refuse", "take_over")
DEFAULT_ADDRESS: Final = "127.0.0.1:61613"


def _own_port(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not -1 <= value <= 65_535:
        raise ValueError(f"{attribute.name} must be a port, 0 (any free one) or -1 (none), got {value}")


@attrs.frozen
class Listener:
    """Address that clients connect to, with their limits. There may be several, each with its own limits."""

    address: str = field(
        DEFAULT_ADDRESS,
        "",
        "Where to listen: `HOST:PORT` or `[IPv6]:PORT`; port 0 takes any free one. The default is STOMP's usual port, "
        "reachable from this machine only: a broker that is open to a network should have users first. "
        "`0.0.0.0:61613` is every interface.",
        is_address,
    )
    protocol: str = field(
        "stomp",
        "",
        "`stomp`: STOMP over TCP. `websocket`: STOMP over WebSocket, for browsers; see `websocket` below. With a "
        "certificate in `tls`, either is encrypted.",
        one_of(PROTOCOLS),
    )
    name: str = field("", "", "How logs and statistics call this listener. Empty: its address.")
    connections_max: int = field(
        20_000,
        "count",
        "Connections at a time; the next one is closed at once, so that existing ones keep their memory and file "
        "descriptors. The default is twice the intended load of one process; the limit of open files (`ulimit "
        "-n`) must allow it.",
        at_least(1),
    )
    limits: StompLimits = attrs.field(
        factory=StompLimits, metadata=about("Limits of one connection; see the table of limits.")
    )
    rates: Rates = section(Rates, "Input limits per second, over all connections of this listener together.")
    tls: TlsConfig = section(TlsConfig, "TLS; off without a certificate.")
    websocket: WebSocketConfig = section(WebSocketConfig, 'Settings for `protocol = "websocket"`.')
    own_port: int = field(
        0,
        "",
        "With `serve --hubs`: port of the first hub alone, for clients that go to the hub that has their destination; "
        "the next hub has the next port. It has the settings of this listener, and `connections_max` once more. "
        "0: any free port. -1: none; clients stay where they are.",
        _own_port,
    )

    @property
    def host(self) -> str:
        """Host of `address`, an IPv6 one without brackets."""
        return split_address(self.address)[0]

    @property
    def port(self) -> int:
        """Port of `address`; 0: any free one."""
        return split_address(self.address)[1]

    @property
    def label(self) -> str:
        """`name`, or else `address`."""
        return self.name or self.address


def _pattern(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value.startswith("/"):
        raise ValueError(
            f"{attribute.name} must be a full destination or pattern such as /queue/orders, /queue/orders.>, /topic/* "
            f"or />, got {value!r}"
        )
    if not value.strip("/"):
        raise ValueError(f"{attribute.name} {value!r} is the name of no destination: write /> for all")
    if is_foreign(value):
        raise ValueError(f"{attribute.name} {value!r} is known as {known_as(value)} here, also to clients that say so")
    names.check_pattern(value)  # the DestinationNameError is a ValueError, and names the fault


_NOT_QUEUES: Final = frozenset({"topic", "log", "temp-topic", "remote-temp-topic", "*", ">"})
"""First segments of patterns that never match queues."""


@attrs.frozen
class DestinationPolicy:
    """Settings for the destinations that match a pattern; other settings stay as they were."""

    match: str = attrs.field(
        validator=_pattern,
        metadata=about(
            "The destinations that this entry is for: a full name, or a pattern with `*` for one level and a last "
            "`>` for one or more (levels are separated by `.` or `/`): `/queue/orders.>`, `/topic/*`, `/>` for all."
            " All "
            "entries that match apply, from top to bottom, so put the general ones first."
        ),
    )
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=copied, hash=False)
    """Fields of `QueuePolicy` to change."""

    def __attrs_post_init__(self) -> None:
        known = [known_field.name for known_field in attrs.fields(QueuePolicy)]
        for key in self.settings:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]}?" if near else f": known are {', '.join(known)}"
                raise TypeError(f"settings for {self.match!r} have an unknown key {key!r}{hint}")
        self.apply(QueuePolicy())
        partition_by = self.settings.get("partition_by") or ""
        if partition_by.startswith(FUNCTION_PREFIX):
            part_functions.load(partition_by.removeprefix(FUNCTION_PREFIX))
        is_relay = self.settings.get("kind") == "relay"
        for set_to, setting in (
            (is_relay, 'kind = "relay"'),
            (self.settings.get("partition_by") is not None, "partition_by"),
        ):
            if set_to and names.first_segment(names.without_host(self.match)) in _NOT_QUEUES:
                raise ValueError(
                    f"{setting} is for queues, and {self.match} is for others too: match queues only, such as /queue/>"
                )
        for key in ("paging", "disconnected_per_second", "catch_up_share"):
            if is_relay and key in self.settings:
                raise ValueError(f'{key} has no meaning with kind = "relay", which keeps nothing: remove it')

    def apply(self, policy: QueuePolicy) -> QueuePolicy:
        """Return `policy` with these settings. Raises ValueError or TypeError for invalid settings."""
        return attrs.evolve(policy, **self.settings)


def _by_pattern(entries: Sequence[DestinationPolicy]) -> PatternTrie[int]:
    """Return the numbers of these entries by their patterns."""
    places: PatternTrie[int] = PatternTrie()
    for place, entry in enumerate(entries):
        places.add(names.edges_of(entry.match), place)
    return places


def _merged(entries: Sequence[DestinationPolicy], places: PatternTrie[int], name: str) -> QueuePolicy:
    """Return the defaults, then every matching entry from top to bottom. Of a virtual host all match that name no
    host, too. O(levels + matching entries).
    """
    policy = QueuePolicy()
    matching = set(places.matching(names.edges_of(name)))
    if names.host_prefix_of(name):
        matching.update(places.matching(names.edges_of(names.without_host(name))))
    for place in sorted(place for place in matching if place is not None):
        policy = entries[place].apply(policy)
    return policy


def _check_not_compacted(entries: Sequence[DestinationPolicy]) -> None:
    """Refuse logs that are to be compacted in a database. Raises ValueError."""
    for place, entry in enumerate(entries, 1):
        if entry.settings.get("log_compact"):
            raise ValueError(
                f"destinations[{place}].log_compact: logs in a database ({entry.match}) can't be compacted. Leave it "
                "out and set log_retention_seconds or log_retention_bytes, or keep the logs in the data folder: "
                'engine = "leveldb" in [store]'
            )


def _dead_letter_queues(entries: Sequence[DestinationPolicy]) -> frozenset[str]:
    named = {QueuePolicy().dead_letter}
    named |= {entry.settings["dead_letter"] for entry in entries if "dead_letter" in entry.settings}
    return frozenset(name for name in named if name is not None)


def _kinds_agree(_instance: object, _attribute: attrs.Attribute[Any], entries: tuple[DestinationPolicy, ...]) -> None:
    """Raise ValueError where what several entries say together is no policy of a relay, makes one of a queue that has
    to keep messages, or counts parts of a queue that has none.
    """
    if not any("kind" in entry.settings or "partitions_count" in entry.settings for entry in entries):
        return
    places = _by_pattern(entries)
    for entry in entries:
        policy = _merged(entries, places, entry.match)
        if policy.kind == "relay" and policy.full not in (None, "block"):
            raise ValueError(
                f"{entry.match} is a relay, whose senders wait while no consumer has room, and an entry that matches, "
                f'too, says full = "{policy.full}": add full = "block" to the last one that does, or kind = "queue"'
            )
        counted = entry.settings.get("partitions_count", QueuePolicy().partitions_count)
        if policy.partition_by is None and counted != QueuePolicy().partitions_count:
            raise ValueError(
                f"{entry.match} has a partitions_count, and nothing that it is divided by: add partition_by = "
                '"header:NAME", or remove it'
            )
    for name in sorted(_dead_letter_queues(entries)):
        if _merged(entries, places, name).kind == "relay":
            raise ValueError(
                f"{name} takes dead letters (dead_letter), and is a relay, which keeps nothing: add an entry below "
                f'with match = "{name}" and kind = "queue"'
            )


MEMORY_MIN_BYTES: Final = 1024 * 1024


def _room_for_messages(_instance: object, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < MEMORY_MIN_BYTES:
        raise ValueError(
            f"{attribute.name} must be 1 MiB or more, got {value}: it is the limit of all messages together. The limit "
            "of one destination is memory_bytes of [[destinations]]"
        )


@attrs.frozen
class BrokerConfig:
    """The broker as a whole."""

    name: str = field(
        "sluiceway",
        "",
        "How this broker calls itself in logs and statistics; give each its own if there are several.",
        not_blank,
    )
    data_dir: Path = field(
        Path("sluiceway-data"),
        "",
        "Folder for what must outlive the process. Relative to the working directory. Made at the start if it is not "
        "there and the broker has a store. One broker at a time may use it.",
        converter=Path,
    )
    shutdown_seconds: float = field(
        10.0,
        "seconds",
        "After SIGTERM or Ctrl-C: how long connections may take to end cleanly (received frames are processed, "
        "written ones are read by the peer) before they are cut. The default fits the grace period of the usual "
        "process supervisors; 0 cuts at once.",
        at_least(0),
    )
    client_id_in_use: str = field(
        "share",
        "",
        "A CONNECT with a `client-id` that another connection to this hub has: `share` (both have it; a durable "
        "subscription has one consumer at a time), `refuse` (the new one gets an ERROR, as with ActiveMQ) or "
        "`take_over` (the old one gets an ERROR and ends, as where a client comes back before its lost connection is "
        "noticed). With users, client-ids of different users are different ones.",
        one_of(CLIENT_ID_POLICIES),
    )
    destinations_max: int = field(
        100_000,
        "count",
        "Destinations at a time. Bounds what clients that make up names can cost (some kilobytes each); those that "
        "are empty and idle are forgotten by themselves (`auto_delete_seconds`).",
        at_least(1),
    )
    attachments_max: int = field(
        ATTACHMENTS_MAX,
        "count",
        "Attachments of all subscriptions together: one for each destination that a SUBSCRIBE names or its wildcard "
        "matches, and one more for each further priority in use there. Each takes up to 3 KiB, so that the default is "
        "730 MiB: ten thousand connections with 25 each. A SUBSCRIBE beyond it is refused. What new destinations add "
        "has a quarter more; a connection whose wildcards add to more than that is ended.",
        at_least(1),
    )
    selectors_bytes_max: int = field(
        SELECTORS_BYTES_MAX,
        "bytes",
        "Memory of all selectors in use; one that several consumers come with counts once. A short one takes 2 KiB, "
        "the longest some 500: the default is room for a hundred of those, or 30,000 short ones. A SUBSCRIBE beyond "
        "it is refused.",
        at_least(1),
    )
    retained_count_max: int = field(
        10_000,
        "count",
        "Topics with a [retained message](special-queues.md#retained-messages). One more is refused with an ERROR.",
        at_least(1),
    )
    retained_bytes_max: int = field(
        64 * 1024 * 1024,
        "bytes",
        "Size of all retained messages together, in memory and on disk. What would exceed it is refused with an ERROR.",
        at_least(1),
    )
    durables_max: int = field(
        10_000,
        "count",
        "Durable subscriptions at a time; each is a place on disk, and may hold messages back there.",
        at_least(0),
    )
    memory_bytes: int | None = field(
        None,
        "bytes",
        "Memory that all messages together may take: in destinations, stashes, buffers and transactions. From three "
        "quarters of it on those destinations that hold the most page out, or block their senders; others take "
        "what they need, and the last sixteenth is for raised priority and for destinations that hold little. "
        "None: half of the machine's memory, or of the limit of the process's control group, and 64 MiB at least. "
        "The other half is for the interpreter, the page cache that the store lives from, and what objects take "
        "beyond what is counted ([the figures](memory.md)).",
        _room_for_messages,
    )
    upkeep_bytes_max: int | None = field(
        None,
        "bytes",
        "Part of `memory_bytes` that connections, subscriptions and destinations may take by themselves, beside their "
        "messages: 24 KiB for a connection, 3 to 4 KiB for a subscription, 7 KiB for a destination and each of its "
        "priorities in use. At the limit new ones are refused with the ERROR `upkeep-full`, and a connection keeps "
        "what it needs to send to 16 destinations in place of 1,024; existing ones stay and work on. None: half of "
        "`memory_bytes`, and 16 MiB at least.",
        or_none(at_least(1)),
    )
    left_behind_bytes_max: int = field(
        64 * 1024 * 1024,
        "bytes",
        "SENDs of connections that ended without DISCONNECT and whose destinations had no room yet, all together. "
        "They are sent as there is room. Each such connection counts with 640 bytes beside them, each run "
        "of SENDs with 320 and each destination with 2 KiB; one with a large body or a committed transaction on its "
        "way with 20 KiB, for its session. Beyond this they are dropped, with a warning in the log; no RECEIPT was "
        "given for them.",
        at_least(0),
    )


def _listeners(listeners: Sequence[Listener]) -> tuple[Listener, ...]:
    return tuple(listeners)


def _policies(policies: Sequence[DestinationPolicy]) -> tuple[DestinationPolicy, ...]:
    return tuple(policies)


ADMIN_NAME: Final = "admin"
"""Name of the admin port in permissions, metrics and the log."""


def _labels_differ(_instance: object, _attribute: attrs.Attribute[Any], value: tuple[Listener, ...]) -> None:
    if not value:
        raise ValueError("listeners must not be empty: without one no client can connect")
    seen: set[str] = set()
    for listener in value:
        # port 0 is a different port each time
        if listener.label in seen and not (listener.port == 0 and not listener.name):
            raise ValueError(f"two listeners are called {listener.label!r}: give each its own address and name")
        if listener.name == ADMIN_NAME:
            raise ValueError(f"a listener can't be called {ADMIN_NAME!r}: that is the admin port")
        seen.add(listener.label)


@attrs.frozen
class Config:
    """Whole configuration of a broker. `Config()` is usable: open to this machine, on STOMP's usual port."""

    broker: BrokerConfig = section(BrokerConfig, "The broker as a whole.")
    logging: LoggingConfig = section(
        LoggingConfig, "Level and form of the broker's log. The storage of logs (`/log/...`) is in `[logs]`."
    )
    admin: AdminConfig = section(AdminConfig, "The admin port: console, API, metrics and health over HTTP.")
    security: SecurityConfig = section(SecurityConfig, "Users, their permissions and their rates.")
    store: StoreConfig = section(StoreConfig, "Where messages are kept, and when they are written.")
    logs: LogStorageConfig = section(
        LogStorageConfig, "Where logs (`/log/...`) are kept. What each may hold stands with the destinations."
    )
    thrift: ThriftConfig = section(ThriftConfig, "The port for Thrift clients of logs.")
    metrics: MetricsConfig = section(MetricsConfig, "Contents of `/metrics` of the admin port.")
    trails: TrailsConfig = section(TrailsConfig, "Recorded history of messages (`sluiceway trail`).")
    tracing: TracingConfig = section(TracingConfig, "Spans of traced messages, for OpenTelemetry.")
    regions: RegionsConfig = section(
        RegionsConfig, "Other clusters whose topics are published here as well ([regions](regions.md))."
    )
    cluster: ClusterConfig = section(
        ClusterConfig, "This broker as a hub among others, on several machines ([how](cluster.md#several-machines))."
    )
    virtual_hosts: tuple[VirtualHost, ...] = attrs.field(
        default=(),
        converter=hosts,
        validator=hosts_differ,
        metadata=about(
            "Sets of destinations of their own, which clients name in the header `host` of CONNECT "
            "([virtual hosts](virtual-hosts.md)). Without an entry every `host` means the one set there is; with one, "
            "a CONNECT that names an unknown host is refused."
        ),
    )
    dispatcher: DispatcherConfig = section(
        DispatcherConfig,
        "How the dispatch loop shares out its time. The defaults are measured; few need to change them.",
    )
    listeners: tuple[Listener, ...] = attrs.field(
        default=(Listener(),),
        converter=_listeners,
        validator=_labels_differ,
        metadata=about("Addresses that clients connect to; at least one."),
    )
    destinations: tuple[DestinationPolicy, ...] = attrs.field(
        default=(),
        converter=_policies,
        validator=_kinds_agree,
        metadata=about(
            "Limits and habits of destinations, by pattern. Every entry that matches applies, from top to bottom; "
            "what none names has the default below."
        ),
    )

    def __attrs_post_init__(self) -> None:
        self.cluster.check_store(self.store)
        self._check_hosts()
        if self.store.engine == "postgresql":
            _check_not_compacted(self.destinations)

    def _check_hosts(self) -> None:
        """Raise ValueError for virtual hosts in a cluster."""
        if self.virtual_hosts and self.cluster.is_on:
            raise ValueError(
                "virtual_hosts can't be together with [cluster]: hubs know destinations of one host only. Take one of "
                "them out, or give each virtual host a cluster of its own"
            )

    @property
    def host_limits(self) -> dict[str, int]:
        """`destinations_max` of virtual hosts that have one, by the prefix of their names."""
        limits = {names.host_prefix(host.path): host.destinations_max for host in self.virtual_hosts}
        return {prefix: limit for prefix, limit in limits.items() if limit is not None}

    @property
    def dead_letter_queues(self) -> frozenset[str]:
        """Dead-letter queues of all policies: they dead-letter nothing themselves."""
        return _dead_letter_queues(self.destinations)

    @property
    def own_segments(self) -> frozenset[str]:
        """First segments of all destinations named in the configuration, which are not typing errors."""
        named = {entry.match for entry in self.destinations} | self.dead_letter_queues
        return frozenset(names.first_segment(names.without_host(name)) for name in named)

    @cached_property
    def _entries(self) -> PatternTrie[int]:
        return _by_pattern(self.destinations)

    @property
    def has_ordered_topics(self) -> bool:
        """Whether topics of some names go by way of the hub that owns them."""
        return any(
            not entry.apply(QueuePolicy()).goes_direct and names.first_segment(entry.match) not in ("queue", "log")
            for entry in self.destinations
        )

    @property
    def watches_consumers(self) -> bool:
        """Whether slow consumers of some names are looked for."""
        return any(entry.settings.get(name) is not None for entry in self.destinations for name in SLOW_LIMITS)

    def policy_for(self, address: names.DestinationName) -> QueuePolicy:
        """Return the policy of one destination. O(levels + matching entries)."""
        # Match the name, not the address: as a destination of SUBSCRIBE "/>" means something else than everything.
        return _merged(self.destinations, self._entries, address.canonical)


def configuration(given: object, default: Callable[[], Config], taker: str) -> Config:
    """Return the configuration given to a broker; None: the default. Raises TypeError that shows the form."""
    if given is None:
        return default()
    if not isinstance(given, Config):
        raise TypeError(
            f"config of {taker} must be a Config, got {given!r:.80}: leave it out for the default, write "
            f'{taker}(Config(listeners=(Listener(address="127.0.0.1:61613"),))) for a fixed address (from '
            f"sluiceway.config import Config, Listener), or {taker}(load(Path(FILE))) for a file"
        )
    return given


# Former names of arguments, for one more version.
Config.__init__ = former_arguments(Config.__init__)  # type: ignore[method-assign]
attrs.resolve_types(Config)  # the other modules walk the fields by their types
