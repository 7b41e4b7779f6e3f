"""Reload of the settings while the broker runs: changeable keys take effect, other changes are named, and a mistake
changes nothing.

A reload is decided as a whole before anything is touched: the file is read and checked, certificates are loaded, new
addresses bound. Only then the reload is carried out, in one go. Other parts register their changeable settings by
`takes`.

Fixed until a restart: the store, `[logs]`, the dispatcher, the admin port and the folder; and of destinations that
exist, the settings that their queues were built with (see `LIVE_POLICY`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs
import trio

from sluiceway.config import Config, ConfigError, DestinationPolicy, Listener
from sluiceway.protocols.listener import ListenError
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.tls import CertificateError
from sluiceway.queues.registry import LIVE_POLICY

if TYPE_CHECKING:
    from sluiceway.broker import Broker

log = get_logger("sluiceway.broker")

_BROKER_KEYS: Final = (
    "broker.shutdown_seconds",
    "broker.destinations_max",
    "broker.attachments_max",
    "broker.retained_bytes_max",
    "broker.retained_count_max",
    "broker.selectors_bytes_max",
)


class ReloadError(Exception):
    """The new settings can't be used; nothing was changed. The message has one line for each mistake."""


@attrs.frozen
class ReloadReport:
    """Result of a reload. Keys as they are written: `logging.level`, `listeners[web].limits.body_bytes_max`."""

    changed: tuple[str, ...] = ()
    """Keys that are in force now."""
    needs_restart: tuple[str, ...] = ()
    """Different in the new settings, and not in force."""


class Reloader:
    """Reload of the settings of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._parts: dict[str, Callable[[Config], None]] = {
            "listeners": lambda _config: None,  # carried out as planned
            "metrics": lambda _config: None,  # read for each page
            "security": lambda _config: None,  # likewise, and in any case: the file of users is read again
            "destinations": self._broker.shards.reconfigure,
            "broker.client_id_in_use": lambda _config: None,  # read for each connection
            "broker.memory_bytes": self._broker.memory.reconfigure,
            "broker.upkeep_bytes_max": self._broker.memory.reconfigure,
            **dict.fromkeys(_BROKER_KEYS, self._broker.shards.reconfigure),
        }
        self._one_at_a_time = trio.Lock()
        self._reading = trio.CapacityLimiter(1)
        """Limit of reading threads of the reload: a source that hangs, and was given up, takes no thread from other
        work.
        """
        self.source: Callable[[], Config] | None = None
        """Reads the settings again, in a thread; raises ConfigError. None: there is nothing to read."""

    def takes(self, key: str, apply: Callable[[Config], None]) -> None:
        """Register `key` (a section such as `security`, or one key of it) as changeable: `apply` is called with the new
        configuration if the key has changed. `apply` must not fail: checks of the values belong to their validators.
        """
        self._parts[key] = apply

    def may_change(self, key: str) -> bool:
        """Return whether a key or section may change without a restart."""
        return self._part_of(key) is not None

    def _part_of(self, key: str) -> str | None:
        return next((part for part in self._parts if key == part or key.startswith((f"{part}.", f"{part}["))), None)

    async def reload_from_source(self) -> ReloadReport:
        """Read the settings from where they came from, and put them in force. What comes of it is logged. Can be
        cancelled while they are read, or while one that was cancelled before still reads: then nothing has changed.

        Raises ReloadError: nothing has changed.
        """
        async with self._one_at_a_time:
            if self.source is None:
                raise ReloadError("this broker was not started with `sluiceway serve`: its program holds its settings")
            try:
                config = await trio.to_thread.run_sync(self.source, abandon_on_cancel=True, limiter=self._reading)
            except ConfigError as error:
                log.error("reload refused: nothing has changed", mistakes=str(error).splitlines())
                raise ReloadError(str(error)) from None
            return self.reload(config)

    def reload(self, config: Config) -> ReloadReport:
        """Put these settings in force as far as that can be. Raises ReloadError: nothing has changed. Reads the files
        of certificates.
        """
        broker, before = self._broker, self._broker.config
        if broker.is_stopping or broker.draining.is_under_way:
            said = "the broker is about to stop, and takes no new connections: its next start reads these settings"
            log.error("reload refused: nothing has changed", mistakes=[said])
            raise ReloadError(said)
        try:
            rules = broker.admission.plan(config)
            certificate = None if broker.admin is None else broker.admin.read_certificate()
            plan = broker.listening.plan(config.listeners)
        except (ConfigError, CertificateError, ListenError) as error:
            said = self._why_taken(error) if isinstance(error, ListenError) else str(error)
            log.error("reload refused: nothing has changed", mistakes=said.splitlines())
            raise ReloadError(said) from None
        read_again = [f"listeners[{label}].tls (certificate read again)" for label in plan.renewed]
        keys = list(differing_keys(before, config))
        parts = {key: self._part_of(key) for key in keys}
        broker.config = self._in_force(before, config)
        broker.listening.carry_out(plan)
        if broker.admin is not None and broker.admin.use_certificate(certificate):
            read_again.append("admin.tls (certificate read again)")
        broker.look_after_certificates()
        differs = broker.admission.carry_out(rules, broker.config, broker.connections)
        if differs and config.security.users_file is not None and not any(key.startswith("security.") for key in keys):
            read_again.append("security.users_file (read again)")
        broken = self._apply(dict.fromkeys(part for part in parts.values() if part is not None))
        if broken:
            broker.config = self._in_force(before, config, without=broken)  # so that the next reload tries them again
        changed = [*(key for key in keys if parts[key] is not None and parts[key] not in broken), *read_again]
        needs_restart = [key for key in keys if parts[key] is None]
        needs_restart += [f"{key} (the broker made a mistake with it)" for key in keys if parts[key] in broken]
        needs_restart += _fixed_policies(before.destinations, config.destinations)
        report = ReloadReport(tuple(changed), tuple(needs_restart))
        say = log.warning if needs_restart else log.info
        say("reloaded", changed=list(report.changed), needs_restart=list(report.needs_restart))
        return report

    def _apply(self, parts: Iterable[str]) -> set[str]:
        """Tell these of their settings. Returns those that broke, which is no matter of the others."""
        broken = set()
        for part in parts:
            try:
                self._parts[part](self._broker.config)
            except Exception as error:  # noqa: BLE001 - the shell of one part
                broken.add(part)
                self._broker.faults.contain(error)
        return broken

    def _why_taken(self, error: ListenError) -> str:
        """The port may be taken by ourselves: a listener is the same by its name and address together."""
        port = error.address.rpartition(":")[2]
        ours = [label for label, url in self._broker.listening.labelled_urls() if str(urlsplit(url).port) == port]
        if not isinstance(error.reason, OSError) or error.reason.errno != errno.EADDRINUSE or not ours:
            return str(error)
        return (
            f"cannot listen on {error.address}: this broker does so already, as listener {ours[0]}. Keep name and "
            "address of a listener as they are, or restart to change them; or choose another port"
        )

    def _in_force(self, before: Config, after: Config, *, without: Set[str] = frozenset()) -> Config:
        """The old settings, with those of the new ones that may change, but for the parts `without`."""
        live_parts = self._parts.keys() - without
        values: dict[str, Any] = {}
        for section in attrs.fields(Config):
            old, new = getattr(before, section.name), getattr(after, section.name)
            if section.name in live_parts:
                values[section.name] = new
            elif attrs.has(type(old)):
                live = [field.name for field in attrs.fields(type(old)) if f"{section.name}.{field.name}" in live_parts]
                values[section.name] = attrs.evolve(old, **{name: getattr(new, name) for name in live})
        return attrs.evolve(before, **values)


def differing_keys(one: Any, other: Any, prefix: str = "") -> Iterator[str]:
    """Names of all that is different between two configurations of the same class."""
    for field in attrs.fields(type(one)):
        key = f"{prefix}.{field.name}" if prefix else field.name
        before, after = getattr(one, field.name), getattr(other, field.name)
        if before == after:
            continue
        if field.name == "listeners" and not prefix:
            yield from _differing_listeners(before, after)
        elif attrs.has(type(before)) and type(before) is type(after):
            yield from differing_keys(before, after, key)
        else:
            yield key


def _differing_listeners(before: tuple[Listener, ...], after: tuple[Listener, ...]) -> Iterator[str]:
    left = list(before)
    for listener in after:
        key = f"listeners[{listener.label}]"
        old = next((each for each in left if (each.name, each.address) == (listener.name, listener.address)), None)
        if old is None:
            yield f"{key} (new)"
        else:
            left.remove(old)
            yield from differing_keys(old, listener, key)
    for listener in left:
        yield f"listeners[{listener.label}] (closed)"


def _fixed_policies(before: tuple[DestinationPolicy, ...], after: tuple[DestinationPolicy, ...]) -> list[str]:
    """Return the changes in policies that hold only for destinations that are made from now on."""
    old = {entry.match: entry.settings for entry in before}
    new = {entry.match: entry.settings for entry in after}
    return [
        f"destinations[{match}].{key} (for destinations that exist)"
        for match in dict.fromkeys([*old, *new])
        for key in dict.fromkeys([*old.get(match, {}), *new.get(match, {})])
        if key not in LIVE_POLICY and old.get(match, {}).get(key) != new.get(match, {}).get(key)
    ]
