"""`sluiceway compliance`: every duty of a STOMP server, checked on any broker."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sluiceway.cli.exits import Exit, fail

if TYPE_CHECKING:
    from sluiceway.compliance.dialects import Dialect
    from sluiceway.compliance.running import Outcome

DIALECT_NAMES = ("sluiceway", "rabbitmq", "activemq", "artemis", "coilmq")


def _header(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    for each in given:
        if ":" not in each:
            raise click.BadParameter(f"{each!r}: write NAME:VALUE")
    return tuple((name, value) for name, _colon, value in (each.partition(":") for each in given))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("address", required=False)
@click.option(
    "--dialect",
    type=click.Choice(DIALECT_NAMES),
    default="sluiceway",
    show_default=True,
    help="Names of destinations, login and headers of a make of broker; the options below override them.",
)
@click.option("--queue", metavar="PATTERN", help="Destination that is a queue, with {name} in it: /queue/{name}.")
@click.option("--topic", metavar="PATTERN", help="Destination that is a topic, with {name} in it: /topic/{name}.")
@click.option("--login", help="Login name.")
@click.option("--passcode", envvar="SLUICEWAY_PASSCODE", help="Passcode; better from SLUICEWAY_PASSCODE.")
@click.option("--host", help="Header host of CONNECT [default: the host of the address].")
@click.option(
    "--subscribe-header", multiple=True, callback=_header, metavar="NAME:VALUE", help="On each SUBSCRIBE to a queue."
)
@click.option("--send-header", multiple=True, callback=_header, metavar="NAME:VALUE", help="On each SEND to a queue.")
@click.option("--tls", is_flag=True, help="TLS, as stomp+ssl:// says, too.")
@click.option("--ca", metavar="FILE", help="Authorities that are trusted, PEM [default: those of the system].")
@click.option("--cert", metavar="FILE", help="Certificate of the client, PEM.")
@click.option("--key", metavar="FILE", help="Its private key, PEM [default: in the file of --cert].")
@click.option("--insecure", is_flag=True, help="Trust any certificate of the broker.")
@click.option(
    "--stomp",
    "versions",
    multiple=True,
    type=click.Choice(["1.0", "1.1", "1.2"]),
    help="Version to check; may be given several times [default: all].",
)
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Checks with this in their name or clause; or a glob for names."
)
@click.option("--without", multiple=True, metavar="PATTERN", help="Leave out these checks: they are shown as skipped.")
@click.option("--list", "is_listing", is_flag=True, help="List the checks with level, clause and duty; ask no broker.")
@click.option(
    "--timeout", type=click.FloatRange(0.05, 600), default=5.0, show_default=True, help="Seconds for each wait."
)
@click.option(
    "--quiet",
    type=click.FloatRange(0.01, 60),
    default=0.3,
    show_default=True,
    help="Seconds in which nothing must come, where nothing may.",
)
@click.option(
    "--check-timeout", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True, help="Seconds for one check."
)
@click.option(
    "--beat", type=click.IntRange(50, 60_000), default=400, show_default=True, help="Milliseconds between heart-beats."
)
@click.option(
    "--beat-max",
    type=click.IntRange(50, 600_000),
    default=3000,
    show_default=True,
    help="Longest milliseconds between heart-beats that are waited for, if the broker wants them longer.",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=8, show_default=True, help="Checks at a time.")
@click.option("--seed", help="Part of the names of destinations [default: random], so that runs do not meet.")
@click.option("--strict", is_flag=True, help="A SHOULD that is not kept gives exit code 1, too.")
@click.option("--all", "all_checks", is_flag=True, help="Print a line for each check, with what the broker chooses.")
@click.option("--progress", is_flag=True, help="Print each check on standard error when it is done.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report as JSON; - is standard output.")
@click.option("--page", "page_file", metavar="FILE", help="Write the report as one HTML page.")
@click.option("--transcripts", is_flag=True, help="Frames of all checks in JSON and page, not only of failed ones.")
def compliance(
    address: str | None,
    dialect: str,
    queue: str | None,
    topic: str | None,
    login: str | None,
    passcode: str | None,
    host: str | None,
    subscribe_header: tuple[tuple[str, str], ...],
    send_header: tuple[tuple[str, str], ...],
    tls: bool,
    ca: str | None,
    cert: str | None,
    key: str | None,
    insecure: bool,
    versions: tuple[str, ...],
    only: tuple[str, ...],
    without: tuple[str, ...],
    is_listing: bool,
    timeout: float,
    quiet: float,
    check_timeout: float,
    beat: int,
    beat_max: int,
    jobs: int,
    seed: str | None,
    strict: bool,
    all_checks: bool,
    progress: bool,
    json_file: str | None,
    page_file: str | None,
    transcripts: bool,
) -> None:
    """Check a STOMP broker of any make against the specifications 1.0, 1.1 and 1.2.

    ADDRESS is HOST:PORT, stomp+ssl://HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH. Each duty of a server is a
    check with the clause it comes from and a level: MUST, SHOULD, or choice, where the specification leaves it to the
    broker and the report says what this one does. The checks use destinations of their own, with the seed in their
    names, and empty them at the end. Do not run them against a broker that others need: some send megabytes of
    nonsense.

    Exit code 0: every MUST that could be checked is kept; 1: one is not; 2: wrong usage, or no session with the broker.

    \b
    Examples:
      sluiceway compliance 127.0.0.1:61613
      sluiceway compliance --list --only heart-beat
      sluiceway compliance --dialect rabbitmq 127.0.0.1:61613 --page report.html
      sluiceway compliance --only 1.2/ack --only 'STOMP 1.2, ERROR' --all 127.0.0.1:61613
      sluiceway compliance --ca ca.pem wss://broker.example/stomp --json - | jq .summary
    """
    from sluiceway.compliance.data import data
    from sluiceway.compliance.kit import Settings
    from sluiceway.compliance.page import page
    from sluiceway.compliance.running import NoBrokerError, run, selected
    from sluiceway.compliance.text import line, listing, text
    from sluiceway.compliance.transport import Target
    from sluiceway.compliance.wire import VERSIONS

    wanted = versions or VERSIONS
    checks = selected(wanted, only, without)
    if not checks:
        _wrong("no check is left: see --list, and --only and --without")
    if is_listing:
        click.echo(listing(checks), nl=False)
        return
    if address is None:
        _wrong("no broker is given: write HOST:PORT, such as 127.0.0.1:61613")
    words = _dialect(dialect, queue, topic, login, passcode, host, subscribe_header, send_header)
    try:
        target = Target.parse(address, tls=tls, ca=ca, cert=cert, key=key, insecure=insecure)
    except (ValueError, OSError) as error:
        _wrong(str(error))
    settings = Settings(
        target=target,
        dialect=words,
        seed=seed or secrets.token_hex(4),
        timeout_seconds=timeout,
        quiet_seconds=quiet,
        check_seconds=check_timeout,
        beat_ms=beat,
        beat_ms_max=beat_max,
    )

    def tell(outcome: Outcome) -> None:
        if progress:
            click.echo(line(outcome), err=True)

    left_out = [check for check in selected(wanted, only) if check not in checks] if without else []
    try:
        report = run(settings, checks, jobs=jobs, skipped=left_out, tell=tell)
    except NoBrokerError as error:
        _wrong(f"no session with {target}: {error}")
    if json_file is not None:
        _write(json_file, json.dumps(data(report, transcripts=transcripts), ensure_ascii=False, indent=1) + "\n")
    if page_file is not None:
        _write(page_file, page(report, transcripts=transcripts))
    if "-" not in (json_file, page_file):
        click.echo(text(report, all_checks=all_checks), nl=False)
    if report.broken(shoulds=strict):
        raise click.exceptions.Exit(int(Exit.INCOMPLETE))


def _dialect(
    name: str,
    queue: str | None,
    topic: str | None,
    login: str | None,
    passcode: str | None,
    host: str | None,
    subscribe_headers: tuple[tuple[str, str], ...],
    send_headers: tuple[tuple[str, str], ...],
) -> Dialect:
    """Return the preset, with what options override."""
    import attrs

    from sluiceway.compliance.dialects import DIALECTS

    for pattern in (queue, topic):
        if pattern is not None and "{name}" not in pattern:
            _wrong(f"{pattern!r}: a pattern has {{name}} in it, such as /queue/{{name}}")
    preset = DIALECTS[name]
    return attrs.evolve(
        preset,
        queue=preset.queue if queue is None else queue,
        topic=preset.topic if topic is None else topic,
        login=preset.login if login is None else login,
        passcode=preset.passcode if passcode is None else passcode,
        host=preset.host if host is None else host,
        subscribe_headers=(*preset.subscribe_headers, *subscribe_headers),
        send_headers=(*preset.send_headers, *send_headers),
    )


def _write(file: str, words: str) -> None:
    if file == "-":
        sys.stdout.write(words)
        return
    try:
        Path(file).write_text(words, encoding="utf-8")
    except OSError as error:
        _wrong(f"{file}: can't be written ({error.strerror})")


def _wrong(words: str) -> NoReturn:
    fail(Exit.USAGE, words)
