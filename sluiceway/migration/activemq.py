"""Configuration of ActiveMQ (Classic): `activemq.xml` and the files of properties that it names, as ours.

Permissions there are of groups, on the same patterns as here but for a last `>`, which there matches no level as well;
all entries that match count together, as here. Of policies only the most specific one counts there; here all that match
do, the later over the earlier, so they are written with the wide ones first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

from sluiceway.migration.findings import Findings, SourceError
from sluiceway.queues.names import DestinationNameError, parse
from sluiceway.security.patterns import check_pattern

Element = ElementTree.Element
Lookup = Callable[[str], bytes | None]
"""Content of a file beside the configuration, by its name; None: it is not there."""

_SIZE: Final = re.compile(r"\s*(\d{1,18})\s*([kKmMgG]?)[bB]?\s*")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_FILE: Final = re.compile(r"([\w.-]+\.properties)")
_MODULE_FILE: Final = re.compile(r"org\.apache\.activemq\.jaas\.properties\.(user|group)\s*=\s*\"([^\"]+)\"")

_BROKER_SILENT: Final = frozenset(
    {"brokerName", "dataDirectory", "id", "name", "start", "useJmx", "useShutdownHook", "xmlns", "advisorySupport"}
    | {"schedulerSupport", "schedulerDirectory"}
)
"""Attributes of the broker that need nothing here."""
_POLICY_SILENT: Final = frozenset(
    {"queue", "topic", "prioritizedMessages", "persistJMSRedelivered", "gcInactiveDestinations"}
    | {"inactiveTimeoutBeforeGC", "inactiveTimoutBeforeGC"}
)
"""Attributes of policies that are read with others, or that every destination here has."""
_POLICY_TUNING: Final = frozenset(
    {"optimizedDispatch", "expireMessagesPeriod", "maxExpirePageSize", "maxPageSize", "maxBrowsePageSize"}
    | {"cursorMemoryHighWaterMark", "useCache", "reduceMemoryFootprint", "enableAudit", "maxAuditDepth"}
    | {"maxProducersToAudit", "lazyDispatch", "blockedProducerWarningInterval", "usePrefetchExtension"}
    | {"minimumMessageSize", "doOptimzeMessageStorage", "optimizeMessageStoreInFlightLimit"}
)
"""Attributes of policies that tune parts which work in another way here."""
_CHILDREN_OF_POLICY: Final = {
    "dispatchPolicy": "consumers take turns, those with a higher x-priority first",
    "subscriptionRecoveryPolicy": "send with retain:set for the last message, or use a log for more",
    "pendingMessageLimitStrategy": "a slow subscriber of a topic is bounded by memory_bytes, not by a number",
    "messageEvictionStrategy": "a slow subscriber of a topic loses the oldest",
    "pendingQueuePolicy": "messages go to the disk when memory_bytes are half full; see paging",
    "pendingSubscriberPolicy": "messages go to the disk when memory_bytes are half full; see paging",
    "pendingDurableSubscriberPolicy": "messages go to the disk when memory_bytes are half full; see paging",
    "networkBridgeFilterFactory": "there is no network of brokers",
}
_PLUGINS: Final = {
    "statisticsBrokerPlugin": "`sluiceway stat`, the HTTP API and /sluiceway/stat have counts",
    "loggingBrokerPlugin": "`sluiceway trail` follows messages",
    "timeStampingBrokerPlugin": "the broker writes no timestamp; expires_max_ms bounds how long messages live",
    "traceBrokerPathPlugin": "there is no network of brokers",
    "destinationPathSeparatorPlugin": "levels are separated by `.` and `/` alike",
    "connectionDotFilePlugin": "the console has a map of the flow",
    "destinationDotFilePlugin": "the console has a map of the flow",
}
_PARTS: Final = {
    "managementContext": None,
    "managementContexts": None,
    "shutdownHooks": None,
    "persistenceAdapter": "`sluiceway migrate activemq --messages` moves what is in it",
    "persistenceFactory": "`sluiceway migrate activemq --messages` moves what is in it",
    "networkConnectors": "there is no network of brokers; several hubs make a cluster",
    "sslContext": "certificates are settings of [[listeners]], as PEM files",
    "jmsBridgeConnectors": "there are no bridges",
    "destinationFactory": "destinations are of one kind",
    "tempDataStore": "everything is in one data folder",
    "taskRunnerFactory": "one thread does the work",
    "ioExceptionHandler": "the broker itself says what a failed disk stops",
    "proxyConnectors": "there are no proxies",
    "services": "there are none",
}
"""Parts of the broker, with what there is in their place; None: nothing is needed."""
_PERMISSIONS: Final = {"read": ("receive", "browse"), "write": ("send",), "admin": ("create",)}
_ADVISORY: Final = "ActiveMQ.Advisory"
_EVERYONE: Final = "*"


def read(document: bytes, lookup: Lookup = lambda _name: None) -> Findings:
    """Return what becomes of `activemq.xml`. Raises SourceError."""
    try:
        root = ElementTree.fromstring(document)  # the parser resolves no external entities, and bounds others
    except ElementTree.ParseError as error:
        raise SourceError(f"it is no XML: {error}") from None
    broker = next((each for each in root.iter() if _name(each) == "broker"), None)
    if broker is None:
        raise SourceError("there is no <broker> in it: name the activemq.xml of ActiveMQ Classic")
    return _Reader(root, broker, lookup).read()


class _Reader:
    """Reads one broker."""

    def __init__(self, root: Element, broker: Element, lookup: Lookup) -> None:
        self._broker = broker
        self._lookup = lookup
        self._properties: dict[str, str] = {}
        for element in root:
            if element is not broker and _name(element) in ("bean", "property-placeholder"):
                for name in _FILE.findall(ElementTree.tostring(element, encoding="unicode")):
                    self._properties |= _pairs(lookup(name))
        self._found = Findings(f"ActiveMQ, broker {broker.get('brokerName', 'localhost')}")
        self._has_users = False
        self._members: dict[str, list[str]] = {}
        """Users by group."""

    def read(self) -> Findings:
        say = self._found.say
        for name, value in self._broker.attrib.items():
            if name == "persistent" and value == "false":
                self._found.section("broker", data_dir="none")
            elif name not in _BROKER_SILENT and name != "persistent":
                say(f"broker: {name} = {value!r} has no equivalent")
        plugins = []
        for part in self._broker:
            match _name(part):
                case "destinationPolicy":
                    self._policies(part)
                case "destinations":
                    self._destinations(part)
                case "destinationInterceptors":
                    self._interceptors(part)
                case "systemUsage":
                    self._usage(part)
                case "transportConnectors":
                    self._connectors(part)
                case "plugins":
                    plugins += list(part)
                case name if name in _PARTS:
                    if (words := _PARTS[name]) is not None:
                        say(f"{name}: {words}")
                case name:
                    say(f"{name} has no equivalent")
        self._dead_letters_of_all()
        # Users first: permissions name them.
        for plugin in sorted(plugins, key=lambda each: _name(each) == "authorizationPlugin"):
            self._plugin(plugin)
        if self._has_users and not any(_name(plugin) == "authorizationPlugin" for plugin in plugins):
            self._found.allow([_EVERYONE], "connect")
            for action in ("send", "receive", "browse", "create"):
                self._found.allow([_EVERYONE], action)
        if self._has_users:
            say("no user gets the permission `admin` (stat, console, purge): allow it by hand")
        return self._found

    def _value(self, text: str) -> str:
        """Return the text with the properties that it names."""
        return _PLACEHOLDER.sub(lambda match: self._properties.get(match[1], match[0]), text)

    # ------------------------------------------------------------------ policies

    def _policies(self, part: Element) -> None:
        entries = [each for each in part.iter() if _name(each) == "policyEntry"]
        made: list[tuple[str, dict[str, Any]]] = []
        for entry in entries:
            for kind in ("queue", "topic"):
                for pattern in filter(None, (each.strip() for each in entry.get(kind, "").split(","))):
                    settings = self._settings(entry, kind, pattern)
                    made += [(each, settings) for each in self._patterns(kind, pattern)] if settings else []
            if entry.get("queue") is None and entry.get("topic") is None:
                what = ", ".join(entry.attrib) or "no destination"
                self._found.say(f"policy entry for {what}: only those of queues and topics are carried over")
        if len(made) > 1:
            self._found.say(
                "policy entries: all that match a destination apply here, the later over the earlier; there only the "
                "most specific one does"
            )
        for pattern, settings in sorted(made, key=lambda each: _specific(each[0])):
            self._found.set(pattern, **settings)

    def _settings(self, entry: Element, kind: str, pattern: str) -> dict[str, Any]:
        say, where = self._found.say, f"policy of {kind} {pattern}"
        made: dict[str, Any] = {}
        if tuning := sorted(_POLICY_TUNING.intersection(entry.keys())):
            say(
                f"{where}: {', '.join(tuning)}: no settings, since expiry, paging and dispatch work in another way here"
            )
        for name, written in entry.attrib.items():
            value = self._value(written)
            if name == "memoryLimit" and (size_bytes := _size(value)):
                made["memory_bytes"] = size_bytes
            elif name == f"{kind}Prefetch" and _is_whole(value):
                made["prefetch_count"] = max(1, int(value))
                if value == "0":
                    say(f"{where}: {name} = 0, consumers that ask for each message, is a prefetch of 1 here")
            elif name == "producerFlowControl":
                if value == "false":
                    say(
                        f"{where}: producerFlowControl = false: a queue here is as long as the disk, and senders wait "
                        "only when that is full, or where the store is missing"
                    )
            elif name == "allConsumersExclusiveByDefault" and value == "true":
                say(f"{where}: {name}: consumers ask for it, with exclusive:true on SUBSCRIBE")
            elif name.startswith(("advisory", "sendAdvisory")):
                say(f"{where}: {name}: there are no advisory topics")
            elif name not in _POLICY_SILENT | _POLICY_TUNING and value not in ("false", "0"):
                say(f"{where}: {name} = {value!r} has no equivalent")
        if entry.get("gcInactiveDestinations") == "true":
            quiet_ms = entry.get("inactiveTimeoutBeforeGC", entry.get("inactiveTimoutBeforeGC", "60000"))
            if _is_whole(quiet_ms):
                made["auto_delete_seconds"] = max(1, int(quiet_ms) // 1000)
        for child in entry:
            strategy = next(iter(child), None)
            name = _name(child)
            if name == "deadLetterStrategy" and strategy is not None:
                self._dead_letters(where, kind, pattern, strategy, made)
            elif name == "slowConsumerStrategy" and strategy is not None:
                self._slow(where, strategy, made)
            elif name in _CHILDREN_OF_POLICY:
                inside = "" if strategy is None else f" {_name(strategy)}"
                say(f"{where}: {name}{inside}: {_CHILDREN_OF_POLICY[name]}")
            else:
                say(f"{where}: {name} has no equivalent")
        return made

    def _dead_letters(self, where: str, kind: str, pattern: str, strategy: Element, made: dict[str, Any]) -> None:
        say, name = self._found.say, _name(strategy)
        target: str | None = None
        if name == "sharedDeadLetterStrategy":
            given = [each.get("physicalName", "") for each in strategy.iter() if _name(each) == "queue"]
            target = given[0] if given else strategy.get("deadLetterQueue", "ActiveMQ.DLQ")
        elif name == "individualDeadLetterStrategy":
            prefix, suffix = strategy.get("queuePrefix", "ActiveMQ.DLQ.Queue."), strategy.get("queueSuffix", "")
            if kind == "queue" and not _is_pattern(pattern):
                target = f"{prefix}{pattern}{suffix}"
            else:
                say(f"{where}: a dead-letter queue for each destination ({prefix}…): write an entry for each of them")
                return
        elif name == "discarding":
            made["dead_letter"] = "none"
            return
        here = None if target is None else self._name_here("queue", target)
        if here is None:
            say(f"{where}: {name} {target or ''} has no equivalent")
            return
        made["dead_letter"] = here
        if kind == "queue":
            made["dead_letter_expired"] = strategy.get("processExpired", "true") == "true"
        if strategy.get("processNonPersistent", "false") == "false":
            say("dead letters: there only persistent messages become one; here all do")
        for attribute in ("expiration", "enableAudit", "destinationPerDurableSubscriber"):
            if strategy.get(attribute, "false") not in ("false", "0", "true" if attribute == "enableAudit" else "0"):
                say(f"{where}: {name} {attribute} = {strategy.get(attribute)!r} has no equivalent")

    def _dead_letters_of_all(self) -> None:
        """Say where dead letters go that no policy speaks of."""
        every = self._found.destinations.pop("/queue/>", {})
        settings = {"dead_letter": "/queue/ActiveMQ.DLQ", "dead_letter_expired": True} | every
        self._found.destinations = {"/queue/>": settings} | self._found.destinations
        if "dead_letter" not in self._found.destinations.get("/topic/>", {}):
            self._found.set("/topic/>", dead_letter="/queue/ActiveMQ.DLQ")

    def _slow(self, where: str, strategy: Element, made: dict[str, Any]) -> None:
        names = {"abortSlowConsumerStrategy": "maxSlowDuration", "abortSlowAckConsumerStrategy": "maxTimeSinceLastAck"}
        attribute = names.get(_name(strategy))
        if attribute is None:
            self._found.say(f"{where}: {_name(strategy)} has no equivalent")
            return
        after_ms = strategy.get(attribute, "30000")
        if _is_whole(after_ms) and int(after_ms) > 0:
            made |= {"slow_consumer": "disconnect", "slow_after_seconds": max(1, int(after_ms) // 1000)}
        for name, value in strategy.attrib.items():
            if name not in (attribute, "name", "checkPeriod", "abortConnection"):
                self._found.say(f"{where}: {_name(strategy)} {name} = {value!r} has no equivalent")

    # ------------------------------------------------------------------ destinations

    def _destinations(self, part: Element) -> None:
        names = [each.get("physicalName", "") for each in part if _name(each) in ("queue", "topic")]
        for each in part:
            if _name(each) in ("queue", "topic"):
                self._name_here(_name(each), each.get("physicalName", ""))
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        self._found.say(f"destinations {shown}: made by the first SEND or SUBSCRIBE, and need no entry")

    def _interceptors(self, part: Element) -> None:
        for each in part.iter():
            match _name(each):
                case "virtualTopic":
                    self._found.say(
                        f"virtual topic {each.get('name', '>')}: SUBSCRIBE to the topic with durable:true and an id, "
                        "which consumers share, in place of the queues Consumer.….VirtualTopic.…"
                    )
                case "compositeQueue" | "compositeTopic":
                    self._found.say(f"{_name(each)} {each.get('name')}: send to all of them, with a comma between")
                case "mirroredQueue":
                    self._found.say("mirrored queues: there are none")

    def _usage(self, part: Element) -> None:
        for each in part.iter():
            name, limit = _name(each), self._value(each.get("limit", ""))
            if name == "memoryUsage" and each.attrib:
                if size_bytes := _size(limit):
                    self._found.section("broker", memory_bytes=size_bytes)
                else:
                    self._found.say(f"memoryUsage {dict(each.attrib)}: memory_bytes of [broker] is a number of bytes")
            elif name == "storeUsage" and each.attrib:
                if size_bytes := _size(limit):
                    self._found.section("store", bytes_max=size_bytes)
                else:
                    self._found.say(f"storeUsage {dict(each.attrib)}: bytes_max of [store] is a number of bytes")
            elif name == "tempUsage" and each.attrib:
                self._found.say("tempUsage: what is paged out is bounded by bytes_max of [store], too")
            elif name == "systemUsage":
                for key, value in each.attrib.items():
                    self._found.say(f"systemUsage: {key} = {value!r}: senders wait; see `full` of [[destinations]]")

    def _connectors(self, part: Element) -> None:
        for each in part:
            uri = self._value(each.get("uri", ""))
            scheme = uri.partition("://")[0]
            where = f"transport connector {each.get('name', uri)!r}"
            if scheme in ("stomp", "stomp+nio"):
                try:
                    parts = urlsplit(uri)
                except ValueError as error:
                    self._found.say(f"{where}: {uri} is no address: {error}")
                    continue
                self._found.listen(parts.netloc)
                if parts.query:
                    self._found.say(f"{where}: options {parts.query} are not carried over: see limits of [[listeners]]")
            elif scheme in ("stomp+ssl", "stomp+nio+ssl", "ws", "wss"):
                self._found.say(f'{where} ({uri}): write a listener with tls, or with protocol = "websocket"')
            else:
                self._found.say(f"{where} ({scheme}): only STOMP is spoken here")

    # ------------------------------------------------------------------ users

    def _plugin(self, plugin: Element) -> None:
        say, name = self._found.say, _name(plugin)
        match name:
            case "simpleAuthenticationPlugin":
                self._simple_users(plugin)
            case "jaasAuthenticationPlugin" | "jaasCertificateAuthenticationPlugin" | "jaasDualAuthenticationPlugin":
                self._jaas_users(plugin)
            case "authorizationPlugin":
                self._authorization(plugin)
            case "redeliveryPlugin":
                self._redelivery(plugin)
            case "discardingDLQBrokerPlugin":
                say(f'{name}: set dead_letter = "none" where dead letters should be dropped')
            case _:
                say(f"plug-in {name}: {_PLUGINS.get(name, 'has no equivalent')}")

    def _simple_users(self, plugin: Element) -> None:
        for each in plugin.iter():
            if _name(each) == "authenticationUser":
                self._user(self._value(each.get("username", "")), each.get("groups", "").split(","))
        if plugin.get("anonymousAccessAllowed") == "true":
            self._found.say("anonymousAccessAllowed: every client logs in here as soon as there are users")

    def _jaas_users(self, plugin: Element) -> None:
        say = self._found.say
        where = f"{_name(plugin)} {plugin.get('configuration', '')}".strip()
        login = self._lookup("login.config")
        files = dict(_MODULE_FILE.findall((login or b"").decode("utf-8", "replace")))
        if "user" not in files:
            say(
                f"{where}: no users are read from it: login.config names no file of users. For LDAP there is "
                "[[security.ldap]], for certificates tls of [[listeners]]"
            )
            return
        groups = _pairs(self._lookup(files.get("group", "")))
        users = _pairs(self._lookup(files["user"]))
        if not users:
            say(f"{where}: {files['user']} is not beside activemq.xml, or has no users")
        for user in users:
            mine = [group for group, members in groups.items() if user in _words(members)]
            self._user(user, mine)

    def _user(self, name: str, groups: Iterable[str]) -> None:
        if not name or _PLACEHOLDER.search(name):
            self._found.say(f"user {name!r}: its name is a property that is not known here")
            return
        self._has_users = True
        if name not in self._found.users:
            self._found.users.append(name)
        for group in filter(None, (each.strip() for each in groups)):
            members = self._members.setdefault(group, [])
            if name not in members:
                members.append(name)
                self._found.groups[group] = members

    def _authorization(self, plugin: Element) -> None:
        say = self._found.say
        if not self._has_users:
            say("authorizationPlugin: there are no users that can be read, so no permissions are written")
            return
        self._found.allow([_EVERYONE], "connect")
        for entry in plugin.iter():
            name = _name(entry)
            if name == "tempDestinationAuthorizationEntry":
                say("permissions for temporary destinations: each connection has its own here, without a permission")
            elif name == "authorizationEntry":
                for kind in ("queue", "topic"):
                    for pattern in filter(None, (each.strip() for each in entry.get(kind, "").split(","))):
                        self._entry(entry, kind, pattern)
                if not (entry.get("queue") or entry.get("topic")):
                    say(f"authorization entry with {', '.join(entry.attrib)}: only queues and topics are carried over")
            elif name in ("cachedLDAPAuthorizationMap", "lDAPAuthorizationMap"):
                say(f"{name}: permissions are in the configuration file here")

    def _entry(self, entry: Element, kind: str, pattern: str) -> None:
        if kind == "topic" and pattern.startswith(_ADVISORY):
            self._found.say(f"permissions on {pattern}: there are no advisory topics")
            return
        patterns = self._patterns(kind, pattern)
        for right, actions in _PERMISSIONS.items():
            groups = _words(entry.get(right, ""))
            for group in groups:
                if group != _EVERYONE and group not in self._members:
                    self._found.say(f"group {group!r}: none of the users is in it, and its permissions are left out")
                    continue
                for action in actions if patterns else ():
                    if group == _EVERYONE:
                        self._found.allow([_EVERYONE], action, patterns)
                    else:
                        self._found.allow_groups([group], action, patterns)

    def _redelivery(self, plugin: Element) -> None:
        for policy in plugin.iter():
            if _name(policy) != "redeliveryPolicy":
                continue
            where = policy.get("queue") or policy.get("topic")
            kind = "topic" if policy.get("topic") else "queue"
            made: dict[str, Any] = {}
            for name, value in policy.attrib.items():
                is_number = _is_whole(value.removeprefix("-"))
                if name == "maximumRedeliveries" and is_number:
                    made["redeliveries_max"] = int(value) if int(value) >= 0 else "none"
                elif name in ("initialRedeliveryDelay", "redeliveryDelay") and is_number and int(value) >= 0:
                    made.setdefault("redelivery_delay_ms", int(value))
                    if name == "initialRedeliveryDelay":
                        made["redelivery_delay_ms"] = int(value)
                elif name == "backOffMultiplier" and _number(value) >= 1:
                    made["redelivery_backoff"] = _number(value)
                elif name == "maximumRedeliveryDelay" and is_number and int(value) > 0:
                    made["redelivery_delay_max_ms"] = int(value)
                elif name not in ("queue", "topic", "useExponentialBackOff"):
                    self._found.say(f"redeliveryPolicy: {name} = {value!r} has no equivalent")
            if policy.get("useExponentialBackOff", "false") != "true" and "redelivery_delay_ms" in made:
                made["redelivery_backoff"] = 1.0
            for pattern in self._patterns(kind, where) if where else ["/queue/>"]:
                self._found.set(pattern, **made)

    # ------------------------------------------------------------------ names

    def _name_here(self, kind: str, name: str) -> str | None:
        wanted = f"/{kind}/{name}"
        try:
            address = parse(wanted)
        except DestinationNameError as error:
            self._found.say(f"{kind} {name!r}: {error}")
            return None
        if address.wildcard or address.canonical != wanted:
            self._found.say(f"{kind} {name!r}: its name means something else here; rename it")
            return None
        return wanted

    def _patterns(self, kind: str, pattern: str) -> list[str]:
        """Return the patterns that match the same; none, and a line of the report: there are none."""
        found = [f"/{kind}/{pattern}"]
        if pattern.endswith(".>"):
            found.insert(0, f"/{kind}/{pattern.removesuffix('.>')}")
        try:
            for each in found:
                check_pattern(each)
        except ValueError as error:
            self._found.say(f"{kind} {pattern!r}: {error}")
            return []
        return found


def _name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _is_pattern(name: str) -> bool:
    return ">" in name or "*" in name


def _specific(pattern: str) -> tuple[bool, int]:
    """Order patterns, the widest first."""
    return not _is_pattern(pattern), len(pattern)


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _UNITS[match[2].lower()] or None if match else None


def _is_whole(text: str) -> bool:
    """Return whether a text is a number of digits, and of not too many."""
    return text.isdecimal() and len(text) <= 18


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _pairs(data: bytes | None) -> dict[str, str]:
    """Return the content of a file of properties."""
    return dict(_lines((data or b"").decode("utf-8", "replace")))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and name.strip() and not name.lstrip().startswith(("#", "!")):
            yield name.strip(), value.strip()
