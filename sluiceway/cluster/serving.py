"""The supervisor of `sluiceway serve --hubs N`: addresses, shards and signals for the hubs of one host."""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio

from sluiceway.cluster.coordination.journal import JournalError
from sluiceway.cluster.coordination.supervisor import SupervisorService
from sluiceway.cluster.hub import VARIABLE as HUB_VARIABLE
from sluiceway.cluster.hub import HubPlace, coordination_socket
from sluiceway.cluster.inherited import ADMIN, THRIFT, InheritedSockets, own_key
from sluiceway.cluster.inherited import VARIABLE as SOCKETS_VARIABLE
from sluiceway.cluster.processes import HubCommand, HubProcesses, private_folder
from sluiceway.config import Config, ConfigError
from sluiceway.config import Listener as ListenerConfig
from sluiceway.protocols.listener import bind, bind_shared, name_of, start_listening
from sluiceway.protocols.log import get_logger
from sluiceway.store.directory import DirectoryError, LockedError, lock_state, locked, told_of
from sluiceway.store.shard_folders import ShardFolders, look_for_shards, make_shards
from sluiceway.supervision import Supervisor

RECORDS: Final = "owners"
"""Name of the file in the data folder that says who has or had which shard."""
RETRY_SECONDS: Final = 1.0
SHARDS_COUNT: Final = 32
"""Number of shards of a new data folder."""

log = get_logger("sluiceway.supervisor")


class HubsConfigError(Exception):
    """The configuration does not go with several hubs. The message says why, and what helps."""


async def serve_hubs(
    config: Config,
    hubs_count: int,
    arguments: Sequence[str],
    *,
    on_ready: Callable[[list[str]], None],
    on_admin: Callable[[list[str]], None],
    source: Callable[[], Config],
) -> None:
    """Run hubs until SIGTERM or SIGINT, then stop them in good order; a second signal cuts. SIGHUP restarts one hub
    after another, with the settings and the code of that moment.

    `arguments`: command line of one hub; `on_ready` gets the URLs when all hubs are ready, `on_admin` those of the
    admin port; `source` reads the settings again (raises ConfigError). Raises ListenError, DirectoryError,
    HubsConfigError, and StartFailedError (in a group) if a hub ends before it is ready.
    """
    folders = await trio.to_thread.run_sync(_shards_of, config, hubs_count)
    supervisor = Supervisor.of()
    with ExitStack() as stack:
        stack.callback(os.close, await trio.to_thread.run_sync(_locked, folders))
        folder = Path(stack.enter_context(private_folder()))
        by_hub = await _bind(config, hubs_count, stack)
        lifeline, held = os.pipe()  # the second end closes with this process, whatever ends it
        stack.callback(os.close, lifeline)
        stack.callback(os.close, held)
        cluster = folders.token.decode()
        secret = secrets.token_hex(32)
        processes = HubProcesses(
            [
                _command(
                    HubPlace(number, hubs_count, folders.shards_count, cluster, str(folder), lifeline, secret),
                    arguments,
                    sockets,
                )
                for number, sockets in enumerate(by_hub, 1)
            ],
            folder,
        )
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(_coordinate, coordination_socket(folder), folders.path / RECORDS, processes)
                reload = partial(_reload, config, source, processes, supervisor)
                nursery.start_soon(_obey, signals, processes, supervisor, reload)
                await nursery.start(processes.run)
                if not processes.is_stopping:
                    urls = processes.hubs[0].status.split(", ")
                    on_ready(urls)
                    if config.admin.address:
                        on_admin(_admin_urls(config, by_hub))
                    supervisor.ready(", ".join(urls))
                    nursery.start_soon(_beat, supervisor)
                await processes.ended.wait()
                nursery.cancel_scope.cancel()


def _shards_of(config: Config, hubs_count: int) -> ShardFolders:
    """Return the shards of the data folder; a new folder gets some. Blocks."""
    if config.store.engine not in ("auto", "leveldb"):
        raise HubsConfigError(
            f"--hubs needs a data folder, and store.engine is {config.store.engine!r}: set it to 'leveldb', or serve "
            "without --hubs"
        )
    if config.virtual_hosts:
        raise HubsConfigError(
            "virtual_hosts can't be together with --hubs: hubs know destinations of one host only. Serve without --hubs"
        )
    path = Path(config.broker.data_dir)
    shards_count = max(SHARDS_COUNT, 1 << math.ceil(math.log2(hubs_count)))
    folders = look_for_shards(path) or make_shards(path, shards_count)
    if folders is None or folders.shards_count < hubs_count:
        count = 1 if folders is None else folders.shards_count
        raise HubsConfigError(f"{path} has {count} shards, too few for {hubs_count} hubs: take at most {count}")
    return folders


def _locked(folders: ShardFolders) -> int:
    """Lock the data folder against another supervisor; returns a descriptor, which holds the lock. Blocks. Raises
    DirectoryError, also if a broker without a supervisor uses one of the shards.
    """
    with told_of(folders.path):
        lock = locked(folders.path)
    try:
        for folder in folders:
            state = lock_state(folder)
            if state.is_held:
                raise LockedError(folder, state.pid, state.host)
    except BaseException:
        os.close(lock)
        raise
    return lock


async def _coordinate(
    socket_path: Path,
    records_path: Path,
    processes: HubProcesses,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the coordination of the hubs. A service that can't write its records begins again: until then no shard
    changes hands. Raises DirectoryError if it can't begin.
    """
    try:
        service = SupervisorService(socket_path, records_path, expired=processes.end_if_hung)
        has_begun = False
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(service.run)
                    if not has_begun:
                        has_begun = True
                        task_status.started()
            except* (JournalError, OSError) as errors:
                if not has_begun:
                    raise
                log.error(
                    "owners of shards can't be written down",
                    error=str(errors.exceptions[0]),
                    effect="no shard changes hands, and hubs may pause; tried again each second",
                )
            await trio.sleep(RETRY_SECONDS)
            service = SupervisorService(socket_path, records_path, expired=processes.end_if_hung)
    except* (JournalError, OSError) as errors:
        raise DirectoryError(f"owners of shards can't be read from {records_path}: {errors.exceptions[0]}") from None


async def _bind(config: Config, hubs_count: int, stack: ExitStack) -> list[dict[str, list[socket.socket]]]:
    """Return for each hub the sockets of its listeners, its admin port and its Thrift port, by configured address."""
    by_hub: list[dict[str, list[socket.socket]]] = [{} for _ in range(hubs_count)]

    def add(address: str, some: Iterable[list[socket.socket]]) -> None:
        for sockets, of_hub in zip(by_hub, some, strict=True):
            sockets[address] = of_hub
            for each in of_hub:
                stack.callback(each.close)

    for listener in config.listeners:
        add(listener.address, await bind_shared(listener.address, hubs_count))
        if listener.own_port >= 0:
            add(own_key(listener.address), [await bind(own) for own in _own_addresses(listener, hubs_count)])
    if config.admin.address:
        # One socket for all hubs: a hub that starts or stands takes no connection, and another one does.
        add(ADMIN, [await bind(config.admin.address)] * hubs_count)
    if config.thrift.listen:
        add(THRIFT, [await bind(config.thrift.listen)] * hubs_count)
    named = {ADMIN: config.admin.address, THRIFT: config.thrift.listen}
    for sockets in by_hub:
        for address, some in sockets.items():
            start_listening(named.get(address, address), some)
    return by_hub


def _own_addresses(listener: ListenerConfig, hubs_count: int) -> list[str]:
    """Return the address of each hub alone, to which clients go that look for the owner of a destination."""
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    first = listener.own_port
    return [f"{host}:{first + number if first else 0}" for number in range(hubs_count)]


def _command(place: HubPlace, arguments: Sequence[str], sockets: Mapping[str, list[socket.socket]]) -> HubCommand:
    return HubCommand(
        place.name,
        arguments,
        {HUB_VARIABLE: place.told(), SOCKETS_VARIABLE: InheritedSockets.told(sockets)},
        [place.lifeline, *(each.fileno() for some in sockets.values() for each in some)],
    )


def _admin_urls(config: Config, by_hub: Sequence[Mapping[str, list[socket.socket]]]) -> list[str]:
    scheme = "https" if config.admin.tls.is_on else "http"
    return [f"{scheme}://{name_of(each.getsockname())}" for each in by_hub[0][ADMIN]]


async def _obey(
    signals: AsyncIterator[int],
    processes: HubProcesses,
    supervisor: Supervisor,
    reload: Callable[[], Awaitable[None]],
) -> None:
    async with trio.open_nursery() as nursery:
        async for number in signals:
            log.info("signal", signal=signal.Signals(number).name)
            if number == signal.SIGHUP:
                nursery.start_soon(reload)
            else:
                supervisor.stopping()
                processes.stop()


async def _reload(
    config: Config, source: Callable[[], Config], processes: HubProcesses, supervisor: Supervisor
) -> None:
    """Restart one hub after another, unless the new settings can't be used."""
    if processes.is_restarting:
        log.warning("rolling restart is under way: one more is not begun")
        return
    try:
        changed = await trio.to_thread.run_sync(source)
    except ConfigError as error:
        log.error("reload refused: nothing has changed", reason=str(error))
        return
    if _places(changed) != _places(config):
        log.error(
            "reload refused: nothing has changed",
            reason="addresses of listeners, of the admin port, or the data folder are others",
            remedy="stop the supervisor and start it again",
        )
        return
    supervisor.reloading()
    await processes.restart_in_turn()
    supervisor.ready(processes.hubs[0].status)


def _places(config: Config) -> tuple[object, ...]:
    return ([(each.address, each.own_port) for each in config.listeners], config.admin.address, config.broker.data_dir)


async def _beat(supervisor: Supervisor) -> None:
    while True:
        supervisor.alive()
        await trio.sleep(1)


def hub_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the command line of one hub of the command that has these arguments."""
    return [sys.executable, "-m", "sluiceway", *arguments]
