"""Checks: pure functions from facts to findings, one per subject. `CHECKS` lists them in the order of display."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from sluiceway.cli.answers import mapping_of, rows_of, words_of, wrong_clocks
from sluiceway.config import Config
from sluiceway.config.fields import is_loopback
from sluiceway.doctor.facts import Facts, Folder, Port
from sluiceway.doctor.findings import Finding, warning
from sluiceway.flow.words import age_in_words, count_in_words, size_in_words
from sluiceway.queues.names import DestinationNameError, parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.store.directory import PAGED, VALUES
from sluiceway.version import VERSION
from sluiceway.views.waits import root_causes_of, waited_seconds

MIB: Final = 1024 * 1024
DAY_SECONDS: Final = 86_400.0
MEMORY_ITSELF_BYTES: Final = 160 * MIB
"""Memory of a broker without messages: Python 50 MiB, LevelDB's buffers and mapped files 80 MiB, batches under way."""
FILES_ITSELF: Final = 200
"""File descriptors other than connections: LevelDB, logs, listeners, standard streams."""
FREE_TIMES: Final = 4
"""Multiple of the reserve below which a disk will be full soon."""
FREE_FILES_MIN: Final = 1_000
PAGED_FREE_BYTES_MIN: Final = 64 * MIB
"""Minimum free space on a separate disk of paged-out messages, which has no reserve: four files of 16 MiB."""
SLOW_SYNC_SECONDS: Final = 0.05
SLOW_ANSWER_SECONDS: Final = 1.0
EXPIRES_SOON_SECONDS: Final = 21 * DAY_SECONDS
LONG_WAIT_SECONDS: Final = 60.0
YEARS: Final = (2025, 2100)
FUTURE_SECONDS: Final = 60.0

VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems whose contents end with the machine."""
REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gfs2", "ocfs2", "vboxsf",
     "drvfs", "virtiofs", "beegfs"}
)  # fmt: skip
"""File systems whose locks, syncs or mapped files differ from those of a local disk."""
LAYERED: Final = frozenset({"overlay", "aufs"})
"""File systems of a container's own layer."""


def software(facts: Facts) -> Iterator[Finding]:
    """Check Python, libraries, and the LevelDB binding."""
    it = facts.software
    version, least = ".".join(map(str, it.python)), ".".join(map(str, it.python_least))
    if it.python < it.python_least:
        yield Finding("Python", f"{version} is older than {least}", f"install Python {least} or later")
    else:
        yield Finding("Python", f"{version}, {it.executable}")
    if not it.packages:
        yield warning(
            "libraries",
            "sluiceway is run from a folder, so the versions it needs are unknown",
            "install it (pip install sluiceway, or pip install -e . in a checkout) to have them compared",
        )
    faults = [found for package in it.packages if (found := _package(package)) is not None]
    yield from faults
    if it.packages and not faults:
        needed = sum(1 for package in it.packages if not package.extra)
        yield Finding("libraries", f"all {needed} that a broker needs are here, none older than declared")
    if it.binding_fault:
        yield Finding(
            "LevelDB",
            f"can't be loaded: {it.binding_fault}",
            "pip install --force-reinstall plyvel (plyvel-next from Python 3.13 on)",
        )


def _package(package: Any) -> Finding | None:
    """Return the finding about a faulty package, or None."""
    upgrade = f"pip install --upgrade '{package.name}>={package.least}'" if package.least else ""
    if package.version is None:
        if package.extra:
            return None  # the extra was not requested
        return Finding(package.name, "is not installed", upgrade or f"pip install {package.name}")
    if package.least and _numbers(package.version) < _numbers(package.least):
        said = f"{package.version} is older than {package.least}"
        return warning(package.name, said, upgrade) if package.extra else Finding(package.name, said, upgrade)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def configuration(facts: Facts) -> Iterator[Finding]:
    """Check whether the configuration is valid, and who else can read it."""
    for former in facts.former_names:
        yield warning("configuration", f"{former.where}: {former.said}", former.remedy)
    named = str(facts.config_file) if facts.config_file is not None else "defaults and environment"
    if facts.config_fault:
        yield Finding(
            "configuration",
            f"{named} can't be used: {facts.config_fault}",
            "fix that; `sluiceway config` prints a file with every key. Checks that depend on it were skipped",
        )
        return
    yield Finding("configuration", f"{named}: valid")
    for oversight in facts.oversights:
        yield warning("configuration", oversight, "correct the file or the variable")
    for file in facts.secret_files:
        if file.mode & 0o077:
            yield warning(
                "secrets",
                f"{file.path}, {file.what}, can be read by others (mode {file.mode:o})",
                f"chmod 600 {file.path}",
            )


def folder(facts: Facts) -> Iterator[Finding]:
    """Check that the data folder exists, is writable, and was closed in order."""
    it = facts.folder
    if it is None:
        if facts.config is not None:
            yield Finding("data folder", "none: the store is off, messages end with the broker")
        return
    if it.fault:
        said, _full_stop, remedy = it.fault.partition(". ")
        yield Finding("data folder", said, remedy or "look at the folder, or choose another one with --data")
        return
    if not it.exists:
        if it.parent_is_writable:
            yield Finding("data folder", f"{it.path} is not there yet; the first start makes it")
        else:
            yield Finding(
                "data folder",
                f"{it.path} is not there, and can't be made in {it.parent}",
                "make it and give it to the user that runs the broker (mkdir, chown), or choose another one (--data)",
            )
        return
    if not it.parent_is_writable:
        yield Finding(
            "data folder",
            f"{it.path} can't be written by this user",
            "run the doctor as the user that runs the broker; if it is that one: chown -R it to it",
        )
        return
    yield from _use(it, facts)
    if it.mode is not None and it.mode & 0o077:
        yield warning(
            "data folder",
            f"{it.path} is accessible to other users (mode {it.mode:o}) and contains message data",
            f"chmod 700 {it.path}",
        )
    if it.attic_count:
        yield warning(
            "attic",
            f"{count_in_words(it.attic_count, 'damaged thing')} moved aside in {it.path / 'attic'}",
            "`sluiceway store check` lists the damage (broker stopped); remove them after inspection",
        )


def _use(it: Folder, facts: Facts) -> Iterator[Finding]:
    holder = f"process {it.lock_pid} on host {it.lock_host}" if it.lock_pid is not None else "another process"
    answers = facts.running is not None and (not facts.running.fault or facts.running.refused)
    if it.lock_is_held and answers:
        yield Finding("data folder", f"{it.path}, in use by {holder}: the broker that runs")
    elif it.lock_is_held:
        where = f", but no broker answers at {facts.running.url}" if facts.running is not None else ""
        yield warning(
            "data folder",
            f"{it.path} is in use by {holder}{where}",
            "if that is the broker, name its address with --url; if it hangs, stop it before you start another",
        )
    elif it.lock_pid is not None:
        yield warning(
            "data folder",
            f"{it.path} was not closed in order: {holder} ended without it (kill -9, a crash, a power cut)",
            "nothing to do: the next start reads the store, and reports missing data",
        )
    else:
        yield Finding("data folder", f"{it.path}, closed in order")


def disk(facts: Facts) -> Iterator[Finding]:
    """Check the file system, its free space, and the duration of a sync."""
    it, config = facts.folder, facts.config
    if it is None or config is None:
        return
    if it.free_bytes is not None:
        yield _space(it.free_bytes, config.store.disk_free_min_bytes)
    if it.values_bytes:
        yield Finding(
            "stored messages",
            f"{size_in_words(it.values_bytes)} of them in {it.path / VALUES}, the rest in {it.path / 'db'}: "
            "one without the other is damaged",
        )
    yield from _paged(it)
    if it.free_files is not None and it.free_files < FREE_FILES_MIN:
        yield warning(
            "files on the disk",
            f"only {it.free_files:,} more can be made",
            "remove some: logs and large bodies are files, and without them the disk is as good as full",
        )
    kind = it.file_system
    if kind in VOLATILE:
        yield warning(
            "file system",
            f"{it.parent} is on {kind}: it is memory, and gone after a restart of the machine",
            'choose a folder on a disk (broker.data_dir, or --data), or set store.engine = "memory" to say so',
        )
    elif kind is not None and (kind in REMOTE or kind.startswith("fuse")):
        yield warning(
            "file system",
            f"{it.parent} is on {kind}: locks, syncs and mapped files are not to be relied on there",
            "choose a folder on a local disk (broker.data_dir, or --data)",
        )
    elif kind in LAYERED:
        yield warning(
            "file system",
            f"{it.parent} is on {kind}, a container's own layer: gone with the container, and slow",
            "mount a volume there, or choose a folder on one (broker.data_dir, or --data)",
        )
    elif kind is not None:
        yield Finding("file system", kind)
    if it.sync_fault:
        yield Finding(
            "sync",
            f"{it.parent} can't be written, synced and mapped into memory: {it.sync_fault}",
            "choose a folder on a local disk that can (broker.data_dir, or --data)",
        )
    elif it.sync_seconds is not None and it.sync_seconds > SLOW_SYNC_SECONDS:
        yield warning(
            "sync",
            f"takes {age_in_words(it.sync_seconds)}: every RECEIPT for a persistent message waits that long",
            "choose a faster disk, or look at what else keeps this one busy",
        )
    elif it.sync_seconds is not None:
        yield Finding("sync", f"takes {age_in_words(it.sync_seconds)}" if it.sync_seconds >= 0.001 else "under 1 ms")


def _paged(it: Folder) -> Iterator[Finding]:
    """Describe the paged-out files, which end with their broker."""
    if it.paged_bytes:
        size, where = size_in_words(it.paged_bytes), it.path / PAGED
        if it.lock_is_held:
            yield Finding(
                "paged out", f"{size} in {where}: messages that are not persistent and found no room in memory"
            )
        else:
            yield Finding(
                "paged out", f"{size} in {where}, left by a broker that was killed; the next start removes it"
            )
    if it.paged_path is not None and it.paged_free_bytes is not None:
        free = size_in_words(it.paged_free_bytes)
        if it.paged_free_bytes < PAGED_FREE_BYTES_MIN:
            yield warning(
                "paged out",
                f"{free} free on the disk of {it.paged_path}: without room there nothing leaves memory, and senders of "
                "messages that are not persistent wait at memory_bytes",
                "free some space there, or choose a folder on a larger disk for the link",
            )
        else:
            yield Finding("paged out", f"on a disk of its own, {it.paged_path}: {free} free")


def _space(free_bytes: int, reserve_bytes: int) -> Finding:
    free, reserve = size_in_words(free_bytes), size_in_words(reserve_bytes)
    remedy = "free some space, or choose a folder on another disk (broker.data_dir, or --data)"
    if free_bytes < reserve_bytes:
        return Finding(
            "disk space",
            f"{free} free, less than the reserve of {reserve} (store.disk_free_min_bytes): persistent messages wait",
            remedy,
        )
    if free_bytes < FREE_TIMES * reserve_bytes:
        return warning("disk space", f"{free} free; below {reserve} persistent messages wait", remedy)
    return Finding("disk space", f"{free} free")


def limits(facts: Facts) -> Iterator[Finding]:
    """Check open files against connections, and memory against the limits of destinations."""
    config = facts.config
    if config is None:
        return
    connections = sum(listener.connections_max for listener in config.listeners)
    connections += config.admin.connections_max if config.admin.address else 0
    allowed = facts.machine.open_files_max
    needed = connections + FILES_ITSELF
    if allowed is not None and allowed < needed:
        room = max(0, allowed - FILES_ITSELF)
        hard = facts.machine.open_files_hard_max
        beyond = "" if hard is None or hard >= needed else f" (root has to raise the hard limit of {hard:,} first)"
        said = f"{allowed:,} allowed: {room:,} connections, not the {connections:,} of connections_max"
        remedy = f"ulimit -n {needed} in the shell, LimitNOFILE={needed} in systemd{beyond}, or lower connections_max"
        yield warning("open files", said, remedy) if room >= 100 else Finding("open files", said, remedy)
    elif allowed is not None:
        yield Finding("open files", f"{allowed:,} allowed, enough for {connections:,} connections")
    yield from _memory(facts, config)


def _memory(facts: Facts, config: Config) -> Iterator[Finding]:
    total = facts.machine.memory_bytes
    if total is None:
        return
    named = [entry for entry in config.destinations if _is_one(entry.match)]
    policies = [config.policy_for(parse(entry.match)) for entry in named]
    fixed = MEMORY_ITSELF_BYTES + config.broker.left_behind_bytes_max + config.logs.cache_bytes_max
    held = fixed + sum(policy.memory_bytes for policy in policies)
    anyone = config.policy_for(parse("/queue/any")).memory_bytes if config.destinations else QueuePolicy().memory_bytes
    remedy = "lower memory_bytes of [[destinations]], left_behind_bytes_max or cache_bytes_max, or give it more memory"
    parts = f"{size_in_words(fixed)} by itself" + (
        f", {size_in_words(held - fixed)} for the {count_in_words(len(named), 'destination')} that you name"
        if named
        else ""
    )
    if held + anyone > total:
        yield Finding("memory", f"a broker may hold more than the {size_in_words(total)} there are: {parts}", remedy)
        return
    available = facts.machine.memory_available_bytes
    count = (total - held) // anyone
    said = f"{size_in_words(total)}: {parts}, then room for {count_in_words(count, 'full destination')} in memory"
    if available is not None and available < fixed:
        yield warning("memory", f"only {size_in_words(available)} of {size_in_words(total)} are available now", remedy)
    elif held + 4 * anyone > total:
        yield warning("memory", said, remedy)
    else:
        yield Finding("memory", said)


def _is_one(pattern: str) -> bool:
    try:
        return not parse(pattern).wildcard
    except DestinationNameError:
        return False


def ports(facts: Facts) -> Iterator[Finding]:
    """Check that ports are free, or held by the running broker."""
    for port in facts.ports:
        if not port.fault:
            yield Finding(port.label, f"{port.address} is free")
        elif port.in_use and _is_the_broker(port, facts):
            if facts.folder is not None and not facts.folder.lock_is_held:
                yield Finding(
                    port.label,
                    f"{port.address} is in use by a broker that runs with another folder",
                    "to start one with this folder, stop that one or choose another port",
                    fatal=False,
                )
            else:
                yield Finding(port.label, f"{port.address} is in use by the broker that runs")
        elif port.in_use:
            who, remedy = "", "stop that program, or choose another port"
            if port.holder_pid is not None:
                who = f": process {port.holder_pid} ({port.holder}) listens there"
            else:
                remedy += f"; `ss -ltnp 'sport = :{port.number}'` as root shows who it is"
            yield Finding(port.label, f"{port.address} is taken{who}", remedy)
        else:
            yield Finding(
                port.label,
                f"{port.address} can't be listened on: {port.fault}",
                "choose an address of this machine (127.0.0.1, 0.0.0.0, ::1) and a port above 1023",
            )


def _is_the_broker(port: Port, facts: Facts) -> bool:
    if facts.folder is not None and facts.folder.lock_is_held and port.holder_pid == facts.folder.lock_pid is not None:
        return True
    running = facts.running
    if running is None or (running.fault and not running.refused):
        return False
    urls = [running.url, *(str(url) for url in mapping_of(running.report, "broker").get("listeners") or ())]
    return any(_port_of(url) == port.number for url in urls)


def _port_of(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def safety(facts: Facts) -> Iterator[Finding]:
    """Check users, permissions and TLS: who can reach the broker, and what they see."""
    config, access = facts.config, facts.access
    if config is None or access is None:
        return
    if access.fault:
        yield Finding("users", access.fault.replace("\n", "; "), "fix [security]: `sluiceway config` explains its keys")
        return
    if access.plain_users:
        names = ", ".join(access.plain_users[:5]) + (" …" if len(access.plain_users) > 5 else "")
        yield warning(
            "users",
            f"passcodes in plain text: {names}",
            "`sluiceway secret` makes a hash to put in their place",
        )
    if access.has_users and not access.has_permissions and config.security.default == "deny":
        yield Finding(
            "permissions",
            "there are users and no permissions, so everything is refused",
            'add [[security.permissions]] (`sluiceway config` explains them), or set security.default = "allow"',
        )
    if access.has_users and not access.plain_users:
        yield Finding("users", "there are some, with hashed passcodes")
    for label, fault in access.sources.items():
        if fault:
            yield Finding(
                "logins", f"{label}: {fault}", "fix it, or take it out; users of other sources can still log in"
            )
        else:
            yield Finding("logins", f"{label} can be used")
    for label in access.sources_in_clear:
        yield warning(
            "logins", f"{label} gets passcodes in the clear", "give it start_tls = true, or an ldaps:// address"
        )
    doors = [(listener.label, listener.host, listener.tls.is_on) for listener in config.listeners]
    if config.admin.address:
        doors.append(("admin port", config.admin.address.rpartition(":")[0].strip("[]"), False))
    outside = [(label, has_tls) for label, host, has_tls in doors if not is_loopback(host)]
    if not outside and not access.has_users:
        yield Finding("users", "none: every local user has full access, no other machine can connect")
    elif outside and not access.has_users:
        yield warning(
            "users",
            f"none, and {_list(label for label, _tls in outside)} can be reached from other machines: every client has "
            "full access",
            "configure [security] users and permissions (`sluiceway config` explains them), or listen on 127.0.0.1",
        )
    in_clear = [label for label, has_tls in outside if not has_tls]
    if in_clear:
        yield warning(
            "TLS",
            f"{_list(in_clear)} can be reached from other machines in clear text, passcodes included",
            "give the listener a certificate (its key tls; the admin port needs a proxy), or listen on 127.0.0.1",
        )


def certificates(facts: Facts) -> Iterator[Finding]:
    """Check that certificates are usable, and until when."""
    for certificate in facts.certificates:
        what = f"TLS of {certificate.label}"
        if certificate.fault:
            yield Finding(
                what,
                certificate.fault,
                "name a PEM file with certificate and key in `tls` of the listener: `sluiceway config` explains it",
            )
            continue
        if certificate.ends_seconds is None:
            continue
        left_seconds = certificate.ends_seconds - facts.clock.now_seconds
        day = time.strftime("%Y-%m-%d", time.gmtime(certificate.ends_seconds))
        renew = f"renew {certificate.path}, then SIGHUP or `reload`: the broker takes it without a restart"
        if left_seconds <= 0:
            yield Finding(what, f"{certificate.path} expired on {day}: clients refuse it", renew)
        elif left_seconds < EXPIRES_SOON_SECONDS:
            yield warning(what, f"{certificate.path} expires on {day}, in {age_in_words(left_seconds)}", renew)
        else:
            yield Finding(what, f"{certificate.path} and its key fit, good until {day}")


def clock(facts: Facts) -> Iterator[Finding]:
    """Check that the clock is plausible, and not behind the files of the data folder."""
    it = facts.clock
    year = time.gmtime(it.now_seconds).tm_year
    newest = facts.folder.newest_seconds if facts.folder is not None else None
    remedy = "set it (timedatectl set-ntp true, or chrony): expiry, retention and certificates go by it"
    if not YEARS[0] <= year <= YEARS[1]:
        yield Finding("clock", f"says that it is {year}", remedy)
    elif it.monotonic_went_back:
        yield Finding("clock", "the monotonic clock went back, which it must never do", "look at the (virtual) machine")
    elif newest is not None and newest - it.now_seconds > FUTURE_SECONDS:
        yield warning(
            "clock",
            f"is behind: files in the data folder are {age_in_words(newest - it.now_seconds)} newer than now",
            remedy,
        )
    elif it.is_synchronized is False:
        yield warning("clock", "nothing on this machine keeps it right", remedy)
    else:
        kept = "kept right by this machine" if it.is_synchronized else "whether it is right can't be seen from here"
        yield Finding("clock", f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(it.now_seconds))} UTC; {kept}")


def tracing(facts: Facts) -> Iterator[Finding]:
    """Check the collector of traces."""
    it = facts.tracing
    if it is None:
        return
    if it.packages_missing:
        yield Finding(
            "traces", f"{it.packages_missing} is missing, so none are made", "pip install 'sluiceway[tracing]'"
        )
    if it.fault:
        yield warning(
            "traces",
            f"the collector at {it.endpoint} can't be reached: {it.fault}",
            "start it, or change the endpoint in [tracing]; messages are not delayed by it",
        )
    elif not it.packages_missing:
        yield Finding("traces", f"the collector at {it.endpoint} can be reached")


def running(facts: Facts) -> Iterator[Finding]:
    """Check the running broker, if there is one."""
    it = facts.running
    if it is None:
        yield from _not_asked(facts.config)
        return
    if it.other:
        remedy = "name a Sluiceway broker with --url, or have the other broker listen elsewhere"
        yield warning("broker", it.fault, remedy)
        return
    if it.refused:
        yield warning(
            "broker", f"{it.url}: {it.fault}", "name a user that may `admin` with --login and SLUICEWAY_PASSCODE"
        )
        return
    if it.fault:
        if it.asked_for:
            yield Finding("broker", it.fault, "start it with `sluiceway serve`, or name another with --url")
        else:
            yield Finding("broker", f"none runs at {it.url}")
        return
    broker = mapping_of(it.report, "broker")
    version = str(broker.get("version", "?"))
    took = f"login in {age_in_words(it.connect_seconds)}, an answer in {age_in_words(it.answer_seconds)}"
    if it.answer_seconds > SLOW_ANSWER_SECONDS:
        yield warning("broker", f"{it.url} is slow: {took}", "`sluiceway top` shows what keeps it busy")
    else:
        yield Finding("broker", f"{it.url} answers: {took}")
    if version != VERSION:
        yield warning(
            "version",
            f"the broker is {version}, this command is {VERSION}",
            "restart the broker if it was upgraded, or use the command of its environment",
        )
    yield from _hubs(it.report)
    yield from _state(it.report)


def _not_asked(config: Config | None) -> Iterator[Finding]:
    """Explain why a listener with TLS was not asked: only its certificate and its users know its host name."""
    for listener in config.listeners if config is not None else ():
        if listener.port and listener.protocol == "stomp" and listener.tls.is_on:
            yield Finding(
                "broker",
                "not asked, since it listens with TLS only: to have it asked, name it as its certificate does "
                f"(--url 'stomp+ssl://HOST:{listener.port}?ca=FILE')",
            )
            return


def _hubs(report: Any) -> Iterator[Finding]:
    """Check the processes of a broker that has several."""
    hubs = rows_of(report, "hubs")
    for hub in hubs:
        name = str(hub.get("name"))
        if hub.get("missing"):
            yield Finding(
                "hubs",
                f"{name} is missing: {hub['missing']}",
                "look into the log of the supervisor: it starts a hub again that ends, or hangs for long"
                if any(str(each.get("address")).startswith("unix:") for each in hubs)
                else f"start it, or look at its machine and its log; started under another name, {name} is forgotten "
                "after an hour",
            )
        elif hub.get("version") not in (None, mapping_of(report, "broker").get("version")):
            yield warning("hubs", f"{name} runs version {hub['version']}", "restart all hubs in turn: send SIGHUP")
        for unlinked in rows_of(hub, "unlinked"):
            if not any(each.get("name") == unlinked.get("hub") and each.get("missing") for each in hubs):
                yield warning(
                    "hubs",
                    f"{name} has no link to {unlinked.get('hub')}, and what is for it waits",
                    f"the log of {name} says why (`no link to a hub`)",
                )
    for words in wrong_clocks(report):
        yield warning("hubs", words, "keep the clocks of all machines right: chrony, or systemd-timesyncd")
    away = [row.get("shard") for row in rows_of(report, "shards") if row.get("hub") is None and "hub" in row]
    if away and not any(hub.get("shards_waiting") for hub in hubs):
        yield warning("hubs", f"{len(away)} shards are open at no hub", "`sluiceway stat --json` says why (`shards`)")
    elif hubs and not any(hub.get("missing") for hub in hubs):
        yield Finding("hubs", f"all {len(hubs)} answer")


def _state(report: Any) -> Iterator[Finding]:
    store = mapping_of(report, "store")
    if store.get("state") not in (None, "ok"):
        why = f": {store['error']}" if store.get("error") else ""
        yield Finding("store", f"{store['state']}{why}", "`sluiceway stat` says who waits for it, and what to do")
    for cycle in report.get("cycles") or ():
        yield Finding(
            "flow", f"never resolves by itself: {words_of(cycle)}", "close one of the connections that are in it"
        )
    for bottleneck in root_causes_of(report):
        age_seconds = waited_seconds(bottleneck)
        if age_seconds is not None and age_seconds > LONG_WAIT_SECONDS:
            yield warning(
                "flow", words_of(bottleneck), "`sluiceway top`, Enter on the row: the chain of waits, and its cause"
            )
            break


def _list(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


Check = Callable[[Facts], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    software,
    configuration,
    folder,
    disk,
    limits,
    ports,
    safety,
    certificates,
    clock,
    tracing,
    running,
)
"""All checks, in the order of the table."""


def check_all(facts: Facts) -> list[Finding]:
    """Return the findings of all checks."""
    return [finding for check in CHECKS for finding in check(facts)]
