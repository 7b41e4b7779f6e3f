"""A process that is all broker: signals, its supervisor, and a garbage collector and allocator tuned for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import trio

from sluiceway.broker import Broker
from sluiceway.cluster.hub import HubPlace
from sluiceway.cluster.inherited import InheritedSockets
from sluiceway.cluster.links import Seat
from sluiceway.config import Config
from sluiceway.data_folder import OnProgress
from sluiceway.protocols.log import get_logger
from sluiceway.reloading import ReloadError
from sluiceway.supervision import Supervisor
from sluiceway.tuning import FreedMemory, trim_in_thread, tune_allocator, tune_garbage_collector

log = get_logger("sluiceway.broker")


async def serve(
    config: Config,
    *,
    on_ready: Callable[[list[str]], None],
    on_admin: Callable[[list[str]], None] | None = None,
    on_reading: OnProgress | None = None,
    source: Callable[[], Config] | None = None,
    config_file: str | None = None,
    apply_logging: Callable[[Config], None] | None = None,
    place: HubPlace | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it in good order; a second signal cuts at once. SIGHUP reloads.

    `source` reads the settings again (raises ConfigError), `apply_logging` sets logging up after a change of `logging`.
    `on_ready` gets the URLs when clients can connect, `on_admin` those of the admin port, `on_reading` hears before how
    far the store is read. `place`: this process is one of several hubs, and stops when their supervisor is gone.
    With `[cluster]` the process is a hub among those of other machines, and raises ClusterMismatchError and
    MetadataFailedError, too. Raises ListenError. Tunes the garbage collector of this process for many live messages.
    """
    tune_garbage_collector()
    tune_allocator()
    seat = await _seat_of(config) if place is None else place.seat(InheritedSockets.of())
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with Broker(config, serving=True, on_reading=on_reading, seat=seat) as broker:
            broker.reloading.source = source
            broker.config_file = config_file
            if apply_logging is not None:
                broker.reloading.takes("logging", apply_logging)
            supervisor = Supervisor.of()
            freed = FreedMemory(trim_in_thread)

            def beat() -> None:
                supervisor.alive()
                freed.look(broker.memory.budget.used_bytes, broker.pulse.next_number())

            broker.pulse.on_beat = beat
            on_ready(broker.urls)
            supervisor.ready(", ".join(broker.urls))
            broker.selector_preparation.begin()
            if on_admin is not None and broker.admin is not None:
                on_admin(broker.admin.urls)
            async with trio.open_nursery() as nursery:
                waiting, reloading = trio.CancelScope(), trio.CancelScope()
                tell_hangup, hangups = trio.open_memory_channel[None](1)  # one that waits reads what all others mean

                async def reload_on_hangup() -> None:
                    with reloading:
                        async for _ in hangups:
                            supervisor.reloading()
                            try:
                                await broker.reload_from_source()
                            except ReloadError:
                                pass  # it is logged
                            except Exception as error:  # noqa: BLE001 - the shell of one signal
                                broker.faults.contain(error)
                            supervisor.ready(", ".join(broker.urls))

                async def end_when_drained() -> None:
                    await broker.stop_wanted.wait()
                    waiting.cancel()

                async def cut_on_second() -> None:
                    async for number in signals:
                        if number == signal.SIGHUP:
                            continue
                        log.warning("second signal: cutting all connections", signal=signal.Signals(number).name)
                        broker.connections.cut()
                        return

                async def end_with_supervisor(lifeline: int) -> None:
                    await trio.lowlevel.wait_readable(lifeline)
                    log.error("the supervisor of the hubs is gone: this hub stops")
                    waiting.cancel()

                if place is not None:
                    nursery.start_soon(end_with_supervisor, place.lifeline)
                nursery.start_soon(end_when_drained)
                nursery.start_soon(reload_on_hangup)
                with waiting:
                    async for number in signals:
                        log.info("signal", signal=signal.Signals(number).name)
                        if number != signal.SIGHUP:
                            break
                        with suppress(trio.WouldBlock):
                            tell_hangup.send_nowait(None)
                reloading.cancel()  # a source that hangs is given up
                nursery.start_soon(cut_on_second)
                supervisor.stopping()
                await broker.stop()
                nursery.cancel_scope.cancel()


async def _seat_of(config: Config) -> Seat | None:
    """Return the place of this process among the hubs of several machines. None: it is a broker of its own."""
    if not config.cluster.is_on:
        return None
    from sluiceway.cluster.founding import look_for_cluster
    from sluiceway.cluster.machines import seat_of

    found = await trio.to_thread.run_sync(look_for_cluster, config, abandon_on_cancel=True)
    return seat_of(config.cluster, found)
