"""Definitions of RabbitMQ (the JSON of `rabbitmqctl export_definitions`, or of `/api/definitions`), as ours.

Permissions there are regular expressions on names of queues and exchanges; here patterns of destinations. Those that
say the same are carried over: everything, nothing, names, beginnings that end with a dot, and alternatives of these.
Others are reported and left out: a permission is never made wider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from sluiceway.migration.findings import Findings, SourceError
from sluiceway.queues.names import DestinationNameError, parse
from sluiceway.security.patterns import EVERYTHING, check_pattern

_ACTIONS: Final = {"configure": "create", "write": "send", "read": "receive"}
_SILENT: Final = (
    "x-queue-type",
    "queue-mode",
    "queue-version",
    "max-priority",
    "queue-leader-locator",
    "queue-master-locator",
)
"""Arguments that need no setting here."""
_SECONDS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_LITERAL: Final = re.compile(r"(?:[\w \-/:@=,+#~%&;!<>'\"]|\\[^\w\s])*")


def read(document: Any, vhost: str = "/") -> Findings:
    """Return what becomes of the definitions of one virtual host. Raises SourceError."""
    if not isinstance(document, Mapping) or "queues" not in document or "rabbit_version" not in document:
        raise SourceError(
            "this is no export of definitions of RabbitMQ (JSON with rabbit_version and queues): "
            "`rabbitmqctl export_definitions FILE` writes one, and /api/definitions of its management port answers it"
        )
    for part in ("queues", "exchanges", "bindings", "users", "permissions", "policies", "vhosts", "parameters"):
        entries = document.get(part, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise SourceError(f"{part} is no list of tables: is the file complete?")
    return _Reader(document, vhost).read()


@attrs.frozen
class Queues:
    """Names of the queues of a virtual host."""

    plain: list[str]
    streams: list[str]


def queues(document: Any, vhost: str = "/") -> Queues:
    """Return the queues in definitions that `read` takes."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for queue in document["queues"]:
        if queue.get("vhost", vhost) == vhost:
            is_stream = _table(queue.get("arguments")).get("x-queue-type") == "stream"
            names[is_stream].append(str(queue.get("name", "")))
    return Queues(names[False], names[True])


class _Reader:
    """Reads one virtual host."""

    def __init__(self, document: Mapping[str, Any], vhost: str) -> None:
        self._document = document
        self._vhost = vhost
        names = [str(entry.get("name", "")) for entry in document.get("vhosts", [])]
        if vhost not in names and names:
            raise SourceError(f"there is no virtual host {vhost!r}; there are: {', '.join(sorted(names))}")
        self._others = [name for name in names if name != vhost]
        self._found = Findings(f"RabbitMQ {document['rabbit_version']}, virtual host {vhost}")

    def read(self) -> Findings:
        say = self._found.say
        if self._others:
            say(
                f"virtual hosts {', '.join(self._others)}: migrate each with --vhost, and run a broker for each, "
                "or have [[virtual_hosts]] in one and write /@NAME in front of the destinations of each"
            )
        self._policies()
        self._queues()
        self._exchanges()
        self._users()
        for parameter in self._document.get("parameters", []):
            say(f"{parameter.get('component')} {parameter.get('name')!r}: no shovels, federation or other parameters")
        for part in ("global_parameters", "topic_permissions"):
            for entry in self._document.get(part, []):
                if part == "topic_permissions" and entry.get("vhost") == self._vhost:
                    say(f"topic permission of {entry.get('user')!r} on {entry.get('exchange')}: to be written by hand")
                elif part == "global_parameters" and entry.get("name") not in ("cluster_name", "internal_cluster_id"):
                    say(f"global parameter {entry.get('name')!r}: nothing like it")
        return self._found

    def _mine(self, part: str) -> Iterable[Mapping[str, Any]]:
        return (entry for entry in self._document.get(part, []) if entry.get("vhost", self._vhost) == self._vhost)

    # ------------------------------------------------------------------ queues

    def _policies(self) -> None:
        kinds = {"all", "queues", "classic_queues", "quorum_queues", "streams"}
        policies = sorted(self._mine("policies"), key=_priority)
        if len(policies) > 1:
            self._found.say(
                "policies: all that match a queue apply here, the later over the earlier; there only one does"
            )
        for policy in policies:
            where = f"policy {policy.get('name')!r}"
            if str(policy.get("apply-to") or "all") not in kinds:
                self._found.say(f"{where} is for {policy.get('apply-to')}: there are none")
                continue
            expression = str(policy.get("pattern", ""))
            patterns = patterns_of(expression, ("/queue/",))
            if patterns is None:
                patterns = [name for queue in self._mine("queues") if (name := self._matched(queue, expression))]
                self._found.say(
                    f"{where}: {expression!r} can't be a pattern here; it is set for the queues that are there now"
                )
            settings = self._settings(where, _table(policy.get("definition")), "/queue/", {})
            for pattern in [each.replace(EVERYTHING, "/queue/>") for each in patterns]:
                if settings:
                    self._found.set(pattern, **settings)

    def _matched(self, queue: Mapping[str, Any], expression: str) -> str | None:
        try:
            is_one = re.search(expression, str(queue.get("name", "")))
        except re.error:
            return None
        return self._address(queue) if is_one else None

    def _address(self, queue: Mapping[str, Any]) -> str | None:
        is_stream = _table(queue.get("arguments")).get("x-queue-type") == "stream"
        name = f"/{'log' if is_stream else 'queue'}/{queue.get('name', '')}"
        try:
            address = parse(name)
        except DestinationNameError as error:
            self._found.say(f"queue {queue.get('name')!r}: {error}")
            return None
        if address.wildcard or address.canonical != name:
            self._found.say(f"queue {queue.get('name')!r}: its name means something else here; rename it")
            return None
        return name

    def _queues(self) -> None:
        for queue in self._mine("queues"):
            name = self._address(queue)
            if name is None:
                continue
            arguments = _table(queue.get("arguments"))
            given = {str(key).removeprefix("x-") if key != "x-queue-type" else key: it for key, it in arguments.items()}
            settings = self._settings(f"queue {queue['name']!r}", given, name, queue)
            if settings or name.startswith("/log/"):
                self._found.set(name, **settings)

    def _settings(self, where: str, given: Mapping[str, Any], name: str, queue: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings for these arguments of a queue, or this definition of a policy."""
        say, is_log = self._found.say, name.startswith("/log/")
        made: dict[str, Any] = {}
        for key, value in given.items():
            if key in _SILENT:
                continue
            if is_log and key == "max-length-bytes" and isinstance(value, int):
                made["log_retention_bytes"] = value
            elif is_log and key == "max-age" and (age := re.fullmatch(r"(\d+)([YMDhms])", str(value))):
                made["log_retention_seconds"] = int(age[1]) * _SECONDS[age[2]]
            elif not is_log and (plain := _PLAIN.get(key)) and isinstance(value, int) and value > 0:
                made[plain] = value
            elif not is_log and key == "expires" and isinstance(value, int):
                made["auto_delete_seconds"] = max(1, value // 1000)
            elif not is_log and key == "overflow" and str(value) in _OVERFLOWS:
                made["full"] = _OVERFLOWS[str(value)]
                if value == "reject-publish-dlx":
                    say(f"{where}: overflow = reject-publish-dlx is reject here, without a dead letter")
            elif not is_log and key == "dead-letter-exchange":
                self._dead_letters(where, given, made)
            elif key == "dead-letter-routing-key" and "dead-letter-exchange" in given:
                continue
            else:
                say(f"{where}: {key} = {value!r} has no equivalent")
        if ("count_max" in made or "bytes_max" in made) and "full" not in made:
            made["full"] = "drop_oldest"
        if made.get("full") == "drop_oldest" and "dead_letter" in made:
            made["full"] = "dead_letter"  # there what is dropped from a full queue is a dead letter, too
        if queue.get("auto_delete"):
            say(f"{where}: auto-delete is a header of SUBSCRIBE (auto-delete:true), not a setting")
        return made

    def _dead_letters(self, where: str, given: Mapping[str, Any], made: dict[str, Any]) -> None:
        exchange, key = str(given["dead-letter-exchange"]), given.get("dead-letter-routing-key")
        targets = {
            str(binding.get("destination"))
            for binding in self._mine("bindings")
            if binding.get("source") == exchange and binding.get("destination_type") == "queue"
        }
        if not exchange and key:
            targets = {str(key)}
        if len(targets) != 1:
            self._found.say(
                f"{where}: dead-letter-exchange {exchange!r} leads to {len(targets) or 'no'} queues"
                f"{' (' + ', '.join(sorted(targets)[:5]) + ')' if targets else ''}; dead_letter names one"
            )
            return
        made["dead_letter"] = f"/queue/{targets.pop()}"
        made["dead_letter_expired"] = True

    def _exchanges(self) -> None:
        bindings = [each for each in self._mine("bindings") if each.get("source")]
        for exchange in self._mine("exchanges"):
            name = exchange.get("name")
            keys = [each.get("routing_key", "") for each in bindings if each.get("source") == name]
            bound = f", with {len(keys)} bindings" if keys else ""
            self._found.say(
                f"exchange {name!r} ({exchange.get('type')}{bound}): there are none; publish to /topic/{name}.KEY, or "
                "to the queues, several with a comma between"
            )
        for binding in bindings:
            if str(binding["source"]).startswith("amq."):
                self._found.say(
                    f"binding of {binding.get('destination_type')} {binding.get('destination')!r} to "
                    f"{binding['source']} ({binding.get('routing_key')!r}): use /topic/… with durable:true"
                )

    # ------------------------------------------------------------------ users

    def _users(self) -> None:
        found, say = self._found, self._found.say
        tags = {str(user.get("name")): user.get("tags", []) for user in self._document.get("users", [])}
        rights = {str(each.get("user")): each for each in self._mine("permissions")}
        narrowed = {str(each.get("user")) for each in self._mine("topic_permissions")}
        """Users with permissions by topic, which have to be written by hand: until then they have none."""
        users = [name for name in tags if name in rights or "administrator" in _words(tags[name])]
        for name in tags.keys() - set(users):
            say(f"user {name!r} has no permission in this virtual host, and is left out")
        for name in users:
            found.users.append(name)
            others = set(_words(tags[name])) - {"administrator"}
            if others:
                say(f"user {name!r}: tags {', '.join(sorted(others))} have no equivalent; `admin` lets see and do all")
        if not users:
            return
        say(f"passcodes of {len(users)} users: RabbitMQ keeps hashes that can't be used here; set new ones")
        found.allow(users, "connect")
        administrators = [name for name in users if "administrator" in _words(tags[name])]
        if administrators:
            found.allow(administrators, "admin")
        for name in users:
            for right, action in _ACTIONS.items():
                expression = str(rights.get(name, {}).get(right, ""))
                patterns = patterns_of(expression, ("/queue/", "/log/"))
                if patterns is None:
                    say(f"user {name!r}: {right} = {expression!r} can't be patterns here, and is left out")
                    continue
                if name in narrowed:
                    patterns = [each for each in patterns if not each.startswith("/topic/")]
                    patterns = ["/queue/>", "/log/>"] if patterns == [EVERYTHING] else patterns
                if patterns:
                    found.allow([name], action, () if patterns == [EVERYTHING] else patterns)


_PLAIN: Final = {
    "message-ttl": "expires_max_ms",
    "max-length": "count_max",
    "max-length-bytes": "bytes_max",
    "delivery-limit": "redeliveries_max",
}
_OVERFLOWS: Final = {"drop-head": "drop_oldest", "reject-publish": "reject", "reject-publish-dlx": "reject"}


def _priority(policy: Mapping[str, Any]) -> int:
    priority = policy.get("priority", 0)
    return priority if isinstance(priority, int) else 0


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(tags: Any) -> list[str]:
    """Return the tags of a user: a list, or in older versions a text with commas."""
    words = tags.split(",") if isinstance(tags, str) else tags if isinstance(tags, list) else []
    return [str(tag).strip() for tag in words if str(tag).strip()]


def patterns_of(expression: str, prefixes: tuple[str, ...]) -> list[str] | None:
    """Return the patterns that match what a regular expression does; None: there are none that say the same."""
    text = expression
    if text in ("", "^$"):
        return []
    if text in (".*", "^.*", "^.*$", ".*$"):
        return [EVERYTHING]
    if not text.startswith("^"):
        return None
    text = text[1:]
    grouped = re.fullmatch(r"\((?:\?:)?([^()]*)\)(\$?)", text)
    if grouped:
        parts = [part + grouped[2] for part in grouped[1].split("|")]
    elif "|" in text:
        return None  # ^a|b$ is not what it looks like
    else:
        parts = [text]
    found: list[str] = []
    for part in parts:
        made = _pattern_of(part)
        if made is None:
            return None
        if made in ("amq.default", "amq.topic", "amq.fanout"):
            # Exchanges: the default one is the way to queues, which need their own names.
            found += ["/topic/>"] if made == "amq.topic" else ["/topic/amq.fanout"] if made == "amq.fanout" else []
        else:
            found += [prefix + made for prefix in prefixes]
    try:
        for pattern in found:
            check_pattern(pattern)
    except ValueError:
        return None
    return found


def _pattern_of(part: str) -> str | None:
    for end, written in ((r"\..*$", ".>"), (r"\..*", ".>"), (r"\..+$", ".>"), (r"\..+", ".>"), ("$", "")):
        if part.endswith(end):
            literal = part.removesuffix(end)
            return re.sub(r"\\(.)", r"\1", literal) + written if literal and _LITERAL.fullmatch(literal) else None
    return None
