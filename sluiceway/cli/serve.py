"""`sluiceway serve`: a broker in the foreground."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.sources import config_option, data_layers, data_option

if TYPE_CHECKING:
    from sluiceway.cluster.hub import HubPlace
    from sluiceway.config import Config
    from sluiceway.config.former import FormerName

HUBS_MAX: Final = 64
"""Hubs of a cluster, as `sluiceway.cluster.coordination.port` has it: a broker without hubs loads nothing of that."""


@click.command()
@click.option(
    "--listen",
    "addresses",
    metavar="HOST:PORT|URL",
    multiple=True,
    help="Listen here instead of on the configured addresses; may be repeated. Port 0: any free one. A URL says more:"
    " stomp+ssl:// is with TLS, ws:// over WebSocket, wss:// both.",
)
@click.option(
    "--tls-certificate",
    "certificate",
    metavar="FILE",
    help="PEM file with the certificate for --listen stomp+ssl:// and wss://.",
)
@click.option(
    "--tls-key", "key", metavar="FILE", help="PEM file with the key of the certificate, if it is not in the same file."
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    help="Serve console, API, metrics and health over HTTP here, such as 127.0.0.1:8161 [default: nowhere].",
)
@data_option("Folder for what outlives the process [default: ./sluiceway-data].")
@config_option("Configuration file (TOML); see `sluiceway config`.")
@click.option(
    "--hubs",
    metavar="N|auto",
    help="Run N processes on this host that are one broker, one for each processor with `auto` [default: 1].",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error [default: info].")
@click.option("--log-format", metavar="FORMAT", help="json, console, or auto: console on a terminal [default: auto].")
def serve(
    addresses: tuple[str, ...],
    certificate: str | None,
    key: str | None,
    admin: str | None,
    data_dir: str | None,
    config_file: Path | None,
    hubs: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    When it is ready it prints one line for each listener on standard output, with the port that it really has, and one
    for the admin port, if there is one:

    \b
      sluiceway ready: stomp://127.0.0.1:61613
      sluiceway admin: http://127.0.0.1:8161

    Logs go to standard error. Settings come from the file, then SLUICEWAY_SECTION__KEY variables, then these flags.
    SIGHUP reads them again: certificates, limits, listeners and more change without a restart.

    With --hubs, a supervisor starts several processes and restarts those that fail. Clients connect to any of them by
    the same address. Destinations are dealt out, so each needs a data folder with shards (`sluiceway cluster init`; a
    new folder gets 32). One admin port answers for all. SIGHUP restarts one hub after another.

    \b
    Examples:
      sluiceway serve
      sluiceway serve --listen 0.0.0.0:61613 --listen '[::]:61613'
      sluiceway serve --listen 127.0.0.1:0 --log-level debug
      sluiceway serve --listen 127.0.0.1:61613 --listen ws://127.0.0.1:15674/stomp
      sluiceway serve --listen stomp+ssl://0.0.0.0:61614 --tls-certificate server.pem
      sluiceway serve --admin 127.0.0.1:8161
      sluiceway serve --hubs auto
      sluiceway serve --config sluiceway.toml
      SLUICEWAY_LOGGING__FORMAT=json sluiceway serve
    """
    from sluiceway import logging_setup
    from sluiceway.config import ConfigError, load
    from sluiceway.config.listening import listener_table
    from sluiceway.config.oversights import oversights
    from sluiceway.config.sources import Layer

    flags = []
    listeners = []
    if addresses:
        try:
            listeners = [listener_table(address, certificate, key) for address in addresses]
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--listen") from None
        flags.append(Layer("--listen", {"listeners": listeners}))
    if certificate is not None and not any("tls" in listener for listener in listeners):
        raise click.UsageError("--tls-certificate is for --listen stomp+ssl://HOST:PORT or wss://HOST:PORT: give one")
    if key is not None and certificate is None:
        raise click.UsageError("--tls-key is the key of --tls-certificate: give that, too")
    if admin is not None:
        flags.append(Layer("--admin", {"admin": {"address": admin}}))
    flags += data_layers(data_dir)
    if log_level is not None:
        flags.append(Layer("--log-level", {"logging": {"level": log_level}}))
    if log_format is not None:
        flags.append(Layer("--log-format", {"logging": {"format": log_format}}))
    read = partial(load, config_file, environment=dict(os.environ), flags=flags)
    former: list[FormerName] = []
    try:
        config = read(tell=former.append)
    except ConfigError as error:
        fail(Exit.USAGE, f"the configuration can't be used:\n{error}")
    logging_setup.configure(config.logging.level, config.logging.format)
    hubs_count = _hubs_count(hubs)
    if hubs is not None and config.cluster.is_on:
        raise click.UsageError("--hubs starts several hubs, and cluster.hub in the configuration is the name of one")
    if hubs_count > 1 and HUB_VARIABLE not in os.environ:
        _serve_hubs(config, hubs_count, read)
        return
    for name in former:  # logging was not configured before
        _log_former_name(name)
    _log_oversights(oversights(config, os.environ))

    import trio

    from sluiceway.broker import ListenError
    from sluiceway.cluster.owner_records import ClusterMismatchError
    from sluiceway.extras import MissingExtraError
    from sluiceway.protocols.tls import CertificateError
    from sluiceway.serving import serve as serve_until_signalled
    from sluiceway.store.compare_and_set import MetadataFailedError
    from sluiceway.store.directory import DirectoryError
    from sluiceway.store.engine import EngineError
    from sluiceway.store.keys import StoreFormatError

    refused: list[ListenError] = []
    unusable: list[Exception] = []
    wrong: list[CertificateError | MissingExtraError | ConfigError | ClusterMismatchError] = []
    silent: list[MetadataFailedError] = []
    place = _place()
    if config.cluster.is_on:
        _name_in_log(config.cluster.hub)
    serving = partial(
        serve_until_signalled,
        config,
        on_ready=_announce if place is None else _say_nothing,
        on_admin=_announce_admin if place is None else _say_nothing,
        place=place,
        source=partial(read, tell=_log_former_name),
        config_file=None if config_file is None else str(config_file),
        apply_logging=lambda changed: logging_setup.configure(changed.logging.level, changed.logging.format),
    )
    if place is None and config.logging.format != "json" and sys.stderr.isatty():
        serving = partial(serving, on_reading=_display())
    try:
        trio.run(serving)
    except* ListenError as group:  # also a bare one, if it left no nursery
        refused.extend(_leaves(group))
    except* (DirectoryError, EngineError, StoreFormatError) as group:
        unusable.extend(_leaves(group))
    except* (CertificateError, MissingExtraError, ConfigError, ClusterMismatchError) as group:
        wrong.extend(_leaves(group))
    except* MetadataFailedError as group:
        silent.extend(_leaves(group))
    if wrong:
        fail(Exit.USAGE, "\n".join(str(error) for error in wrong))
    if silent:
        fail(Exit.CONNECT, "\n".join(str(error) for error in silent))
    if unusable:
        fail(Exit.STORE, "\n".join(str(error) for error in unusable))
    if refused:
        fail(Exit.LISTEN, "\n".join(_why(error, config) for error in refused))


HUB_VARIABLE: Final = "SLUICEWAY_HUB"


def _hubs_count(said: str | None) -> int:
    if said is None:
        return 1
    if said == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not said.isdigit() or not 1 <= int(said) <= HUBS_MAX:
        raise click.BadParameter(f"{said!r} is no number of hubs: 1 to {HUBS_MAX}, or auto", param_hint="--hubs")
    return int(said)


def _place() -> HubPlace | None:
    """Return the place of this process among the hubs of a supervisor. None: it is a broker of its own."""
    if HUB_VARIABLE not in os.environ:
        return None
    from sluiceway.cluster.hub import HubPlace

    place = HubPlace.of()
    if place is not None:
        _name_in_log(place.name)
    return place


def _name_in_log(hub: str) -> None:
    """Have each line of the log say which hub it is of."""
    import structlog

    structlog.contextvars.bind_contextvars(hub=hub)


def _serve_hubs(config: Config, hubs_count: int, read: Callable[..., Config]) -> None:
    """Run the supervisor of several hubs."""
    import trio

    from sluiceway.cluster.processes import StartFailedError
    from sluiceway.cluster.serving import HubsConfigError, hub_arguments, serve_hubs
    from sluiceway.protocols.listener import ListenError
    from sluiceway.store.directory import DirectoryError

    found: list[Exception] = []
    try:
        trio.run(
            partial(
                serve_hubs,
                config,
                hubs_count,
                hub_arguments(sys.argv[1:]),
                on_ready=_announce,
                on_admin=_announce_admin,
                source=partial(read, tell=_log_former_name),
            )
        )
    except* (ListenError, DirectoryError, HubsConfigError, StartFailedError) as group:
        found.extend(_leaves(group))
    for error in found[:1]:
        if isinstance(error, ListenError):
            fail(Exit.LISTEN, _why(error, config))
        if isinstance(error, StartFailedError):
            click.echo(f"sluiceway: {error}", err=True)
            raise click.exceptions.Exit(error.exit_code if error.exit_code > 0 else 1)
        fail(Exit.STORE if isinstance(error, DirectoryError) else Exit.USAGE, str(error))


def _say_nothing(_urls: list[str]) -> None:
    """Leave it to the supervisor."""


def _log_former_name(name: FormerName) -> None:
    from sluiceway.protocols.log import get_logger

    get_logger("sluiceway.config").warning(
        "former name in the configuration", where=name.where, said=name.said, remedy=name.remedy
    )


def _log_oversights(found: Iterable[str]) -> None:
    from sluiceway.protocols.log import get_logger

    for oversight in found:
        get_logger("sluiceway.config").warning("suspicious configuration", found=oversight)


def _display() -> Callable[[int | None], None]:
    """Return a display of how much of the store is read: a large one takes some seconds."""
    from sluiceway.cli.progress import Display

    display = Display("reading the store")

    def tell(count: int | None) -> None:
        if count is None:
            display.close()
        else:
            display.tell(count)

    return tell


def _announce(urls: list[str]) -> None:
    """Print one line for each listener at once: the starting process may be waiting for it."""
    for url in urls:
        click.echo(f"sluiceway ready: {url}")


def _announce_admin(urls: list[str]) -> None:
    for url in urls:
        click.echo(f"sluiceway admin: {url}")


def _leaves(group: BaseExceptionGroup[Any]) -> list[Any]:
    found: list[Any] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(_leaves(error))
        else:
            found.append(error)
    return found


def _why(error: Any, config: Config) -> str:
    """Return the address, the reason and the remedy."""
    setting, usual = "--listen", 61613
    if error.address not in {listener.address for listener in config.listeners}:
        others = {config.admin.address: ("--admin", 8161), config.thrift.listen: ("listen of [thrift]:", 9090)}
        setting, usual = others.get(error.address, (setting, usual))
    said = f"cannot listen on {error.address}: {getattr(error.reason, 'strerror', None) or error.reason}."
    code = getattr(error.reason, "errno", None) or error.errno
    port = str(error.address).rpartition(":")[2]
    if code == errno.EADDRINUSE:
        return (
            f"{said}\nPort {port} is taken by another program, perhaps another broker: `ss -ltnp 'sport = :{port}'` "
            f"shows which. "
            f"Stop it, or choose another port: {setting} 127.0.0.1:0 takes any free one."
        )
    if code == errno.EACCES:
        return f"{said}\nPorts below 1024 belong to root: choose another, such as {setting} 127.0.0.1:{usual}."
    if code == errno.EADDRNOTAVAIL:
        return f"{said}\nThis machine has no such address: 127.0.0.1 is itself alone, 0.0.0.0 every interface it has."
    return f"{said}\nChoose another address with {setting} HOST:PORT."
