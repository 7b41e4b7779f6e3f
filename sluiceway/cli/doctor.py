"""`sluiceway doctor`: checks of this machine, the configuration, and the running broker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.sources import config_option, data_layers, data_option

if TYPE_CHECKING:
    from sluiceway.config import Config
    from sluiceway.config.former import FormerName
    from sluiceway.doctor.facts import Facts, Running


@click.command()
@config_option("Configuration file (TOML), as for `sluiceway serve`.")
@data_option("Data folder, as for `sluiceway serve`.")
@click.option(
    "--url",
    envvar="SLUICEWAY_URL",
    help="The broker that should run: stomp://[LOGIN:PASSCODE@]HOST[:PORT] [default: the first listener, if it is up].",
)
@click.option("--login", help="Login name. Overrides the one in the URL.")
@click.option("--passcode", envvar="SLUICEWAY_PASSCODE", help="Passcode; better from SLUICEWAY_PASSCODE.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, for programs.")
def doctor(
    config_file: Path | None,
    data_dir: str | None,
    url: str | None,
    login: str | None,
    passcode: str | None,
    as_json: bool,
) -> None:
    """Look at everything that keeps a broker from running well, and name the remedy.

    Software, configuration, data folder and disk, limits of this machine, ports, users and TLS, certificates, clock;
    and the broker, if one runs. Give it the same --config and --data as `serve`, and run it as the same user. Nothing
    is changed. Ends with exit code 7 if there is a problem (✗); warnings (!) are no problem.

    \b
    Examples:
      sluiceway doctor
      sluiceway doctor --config sluiceway.toml --data /var/lib/sluiceway
      sluiceway doctor --url stomp://admin@broker.example:61613
      sluiceway doctor --json | jq '.findings[] | select(.verdict != "ok")'
    """
    from sluiceway.doctor.checks import check_all
    from sluiceway.doctor.findings import Verdict, tell_all, worst

    found = check_all(_facts(config_file, data_dir, url, login, passcode))
    if as_json:
        verdict = worst(finding.verdict for finding in found)
        data = {"verdict": verdict.value, "findings": [finding.to_dict() for finding in found]}
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
        if verdict is Verdict.PROBLEM:
            raise click.exceptions.Exit(int(Exit.FAULTY))
        return
    if tell_all(found, click.echo) is Verdict.PROBLEM:
        fail(Exit.FAULTY, "there are problems: see the lines with ✗")


def _facts(
    config_file: Path | None, data_dir: str | None, url: str | None, login: str | None, passcode: str | None
) -> Facts:
    from sluiceway.config import ConfigError, load
    from sluiceway.config.oversights import oversights
    from sluiceway.doctor import probes
    from sluiceway.doctor.facts import Facts
    from sluiceway.doctor.software import look_at_software

    config, fault = None, ""
    former: list[FormerName] = []
    flags = data_layers(data_dir)
    try:
        config = load(config_file, environment=os.environ, flags=flags, tell=former.append)
    except ConfigError as error:
        fault = "; ".join(str(error).splitlines())
    running = _ask(config, url, login, passcode)
    folder = None
    if config is not None and config.store.engine in ("auto", "leveldb"):
        folder = probes.look_at_folder(config.broker.data_dir)
    elif config is None and data_dir is not None:
        folder = probes.look_at_folder(Path(data_dir))
    return Facts(
        software=look_at_software(),
        machine=probes.look_at_machine(),
        clock=probes.look_at_clock(),
        config=config,
        config_fault=fault,
        config_file=config_file,
        former_names=tuple(former),
        oversights=tuple(oversights(config, os.environ)) if config is not None else (),
        folder=folder,
        ports=probes.look_at_ports(config) if config is not None else (),
        certificates=probes.look_at_certificates(config) if config is not None else (),
        secret_files=probes.look_at_secret_files(config_file, config) if config is not None else (),
        access=probes.look_at_access(config) if config is not None else None,
        tracing=probes.look_at_tracing(config) if config is not None else None,
        running=running,
    )


def _ask(config: Config | None, url: str | None, login: str | None, passcode: str | None) -> Running | None:
    """Ask the broker at that address, or else at the first listener without TLS or WebSocket."""
    from sluiceway.client.address import Address
    from sluiceway.doctor.asking import ask_broker

    if url is not None:
        try:
            address = Address.parse(url).as_user(login, passcode)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
        return ask_broker(address, asked_for=True)
    for listener in config.listeners if config is not None else ():
        if listener.port and listener.protocol == "stomp" and not listener.tls.is_on:
            here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)
            return ask_broker(Address(here, listener.port, login, passcode), asked_for=False)
    return None
