"""The coordination service of one host, for the process that supervises its hubs: a Unix socket, and a file.

A hub whose process ends is gone at once; one that is silent when its session time is over. Records and sessions outlive
a restart of the supervisor (journal.py), so epochs never go back, and hubs that are connected go on.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from sluiceway.protocols.log import get_logger

from .journal import Journal, JournalError
from .messages import Message, MessageError, MessageReader, framed, number_of
from .service import Service

log = get_logger("sluiceway.cluster.coordination.supervisor")

READ_BYTES: Final = 64 << 10

UNSENT_BYTES_MAX: Final = 16 << 20
"""Bytes that wait for one hub. A hub that does not read is cut off, and its session ends in time."""

LOOK_SECONDS_MAX: Final = 1.0


class SocketInUseError(Exception):
    """Another supervisor serves at the path."""


class _HubConnection:
    """Connection of a hub, as a Peer: what is sent waits for the writer, which waits for the disk."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.unsent = bytearray()
        self.ready = trio.Event()
        self.ended = False

    def send(self, message: Message) -> None:
        self.unsent += framed(message)

    def hang_up(self, why: str) -> None:
        log.warning("hub cut off", why=why)
        self.ended = True

    def flush(self) -> None:
        """Let the writer send: all changes are on disk."""
        if len(self.unsent) > UNSENT_BYTES_MAX:
            self.hang_up("the hub does not read")
        if self.unsent or self.ended:
            self.ready.set()


class SupervisorService:
    """The service behind a Unix socket."""

    def __init__(self, socket_path: Path, records_path: Path, *, expired: Callable[[str], None] | None = None) -> None:
        """`expired`: called with the name of a hub that was silent for its session time, before others take over."""
        self._socket_path = socket_path
        self._journal = Journal(records_path)
        self._connections: dict[_HubConnection, None] = {}
        self._turn = trio.Lock()
        changes = self._journal.read()
        run_number = 1 + max((int(number_of(change, "run")) for change in changes if "run" in change), default=0)
        self._service = Service(trio.current_time, ends_with_connection=True, run_number=run_number)
        if expired is not None:
            self._service.on_expired = expired
        self._run = {"run": run_number}
        self._restore = [change for change in changes if "run" not in change]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises JournalError, SocketInUseError, OSError."""
        try:
            try:
                self._service.restore(self._restore)
            except MessageError as error:
                raise JournalError(f"the records of the cluster are damaged: {error}") from error
            self._service.take_changes()
            self._journal.rewrite([self._run, *self._service.snapshot()])
            listener = trio.SocketListener(_listening(self._socket_path))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look)
                task_status.started()
                try:
                    await trio.serve_listeners(self._serve, [listener], handler_nursery=nursery)
                finally:
                    self._socket_path.unlink(missing_ok=True)
        finally:
            self._journal.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = _HubConnection(stream)
        self._service.connected(connection)
        self._connections[connection] = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, connection, nursery.cancel_scope)
                await self._read(connection)
                nursery.cancel_scope.cancel()
        finally:
            self._connections.pop(connection)
            # The end of this process is no end of a hub: its session waits for the next one.
            if trio.current_effective_deadline() > -math.inf:
                self._service.disconnected(connection)
                async with self._turn:
                    await self._commit()
            await trio.aclose_forcefully(stream)

    async def _read(self, connection: _HubConnection) -> None:
        reader = MessageReader()
        while not connection.ended:
            try:
                data = await connection.stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                return
            if not data:
                return
            async with self._turn:
                try:
                    for message in reader.feed(bytes(data)):
                        self._service.received(connection, message)
                except MessageError as error:
                    log.warning("no message of a hub", why=str(error))
                    return
                await self._commit()

    async def _write(self, connection: _HubConnection, whole: trio.CancelScope) -> None:
        while not connection.ended:
            await connection.ready.wait()
            connection.ready = trio.Event()
            data, connection.unsent = bytes(connection.unsent), bytearray()
            try:
                await connection.stream.send_all(data)
            except trio.BrokenResourceError:
                break
        whole.cancel()

    async def _look(self) -> None:
        """End sessions in time."""
        while True:
            left_seconds = self._service.next_deadline_seconds - trio.current_time()
            await trio.sleep(min(max(left_seconds, 0.01), LOOK_SECONDS_MAX))
            async with self._turn:
                self._service.expire()
                await self._commit()

    async def _commit(self) -> None:
        """Make all changes durable, then let everything be sent. In one's turn."""
        changes = self._service.take_changes()
        if changes:
            await trio.to_thread.run_sync(self._journal.append, changes)
            if self._journal.wants_rewrite:
                await trio.to_thread.run_sync(self._journal.rewrite, [self._run, *self._service.snapshot()])
        for connection in self._connections:
            connection.flush()


def _listening(path: Path) -> trio.socket.SocketType:
    """Return a socket that listens at a path. Raises SocketInUseError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if path.exists():
            _remove_stale(path)
        found.bind(str(path))
        os.chmod(path, 0o600)
        found.listen()
    except OSError as error:
        found.close()
        if error.errno == errno.ENAMETOOLONG or "too long" in str(error):
            raise OSError(f"the path of the socket is too long for Unix sockets: {path}") from error
        raise
    except SocketInUseError:
        found.close()
        raise
    return trio.socket.from_stdlib_socket(found)


def _remove_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise SocketInUseError(f"another supervisor serves at {path}: stop that one, or give this one another folder")
