"""`sluiceway migrate`: the configuration of another broker, written as one of ours."""

from __future__ import annotations

import json
import urllib.parse
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.migrate_options import MoveOptions, message_options
from sluiceway.cli.suggestions import SuggestingGroup

if TYPE_CHECKING:
    from sluiceway.cli.migrate_messages import Move
    from sluiceway.client.address import Address
    from sluiceway.migration.findings import Findings

DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
ANSWER_SECONDS: Final = 60.0


_output_option = click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write, which must not exist [default: print it].",
)


@click.group(cls=SuggestingGroup)
def migrate() -> None:
    """Move from another broker to Sluiceway.

    Its configuration is written as one for Sluiceway, and nothing is changed there. With --messages the messages of its
    queues are moved: each is acknowledged there when it has arrived here.
    """


@migrate.command()
@click.argument("source")
@click.option("--vhost", default="/", show_default=True, help="The virtual host to read.")
@_output_option
@click.option(
    "--definitions",
    metavar="FILE|URL",
    help="With --messages: definitions that tell the queues; the management port also tells what is left.",
)
@click.option(
    "--id-header",
    metavar="NAME",
    help="With --messages: header with an id that no two messages share, such as amqp-message-id. What a crash left in "
    "question is then not sent twice.",
)
@message_options
def rabbitmq(
    source: str,
    vhost: str,
    output: Path | None,
    definitions: str | None,
    id_header: str | None,
    messages: bool,
    address: Address,
    move: MoveOptions,
) -> None:
    """Read queues, policies, users and permissions of RabbitMQ, or move its messages.

    SOURCE is a file of definitions (`rabbitmqctl export_definitions FILE`), or the address of the management port,
    http://USER:PASSWORD@HOST:15672. What has no equivalent here is listed, on standard error and at the head of the
    file.

    With --messages it is the address of the STOMP plug-in, stomp://USER:PASSWORD@HOST:61613, and --url the broker here.

    \b
    Examples:
      sluiceway migrate rabbitmq definitions.json --output sluiceway.toml
      sluiceway migrate rabbitmq http://guest:guest@localhost:15672 --vhost shop
      sluiceway migrate rabbitmq stomp://guest:guest@old:61613 --messages --queue orders
      sluiceway migrate rabbitmq stomp://guest:guest@old:61613 --messages --definitions http://guest:guest@old:15672
    """
    if messages:
        _move_from_rabbitmq(source, vhost, definitions, id_header, address, move)
        return
    if definitions is not None or id_header is not None:
        raise click.UsageError("--definitions and --id-header are for --messages: add it")
    _write(_rabbitmq_read(_definitions(source), vhost), output)


def _move_from_rabbitmq(
    source: str, vhost: str, definitions: str | None, id_header: str | None, address: Address, move: MoveOptions
) -> None:
    import attrs

    from sluiceway.cli.migrate_messages import Move
    from sluiceway.migration.rabbitmq import queues
    from sluiceway.migration.translation import RABBITMQ

    names = list(move.queues)
    left: Callable[[], Counter[str]] | None = None
    if definitions is not None:
        document = _definitions(definitions)
        _rabbitmq_read(document, vhost)
        found = queues(document, vhost)
        for name in found.streams:
            warn(
                f"stream {name!r} is not moved: it keeps its records, so read it from its beginning and append to a log"
            )
        names = names or found.plain
        if _is_url(definitions):
            left = partial(_rabbitmq_counts, definitions, vhost)
    if not names:
        raise click.UsageError("no queue is named: over STOMP RabbitMQ tells none; give --queue NAME or --definitions")
    old = attrs.evolve(_stomp(source, move), virtual_host=vhost)
    _run(Move(attrs.evolve(RABBITMQ, id_header=id_header), old, address, names, move, left), move)


def _rabbitmq_counts(url: str, vhost: str) -> Counter[str]:
    """Return how many messages each queue has now, by the management port."""
    # Without `disable_stats` the answer is some seconds old.
    query = "?disable_stats=true&enable_queue_totals=true"
    found = _asked(url, f"/api/queues/{urllib.parse.quote(vhost, safe='')}{query}", "counts")
    try:
        return Counter({str(each["name"]): int(each["messages"]) for each in found})
    except (KeyError, TypeError, ValueError):
        fail(Exit.FAULTY, "the management port does not tell how many messages queues have: name a RabbitMQ of 3.10 on")


def _rabbitmq_read(document: Any, vhost: str) -> Findings:
    from sluiceway.migration.findings import SourceError
    from sluiceway.migration.rabbitmq import read

    try:
        return read(document, vhost)
    except SourceError as error:
        fail(Exit.FAULTY, str(error))


@migrate.command()
@click.argument("source")
@_output_option
@message_options
def activemq(source: str, output: Path | None, messages: bool, address: Address, move: MoveOptions) -> None:
    """Read destinations, policies, users and permissions of ActiveMQ (Classic), or move its messages.

    SOURCE is activemq.xml, or the folder that it is in: files of properties that it names are read from there. What has
    no equivalent here is listed, on standard error and at the head of the file.

    With --messages it is the address of its STOMP connector, stomp://USER:PASSWORD@HOST:61613, and --url the broker
    here. Without --queue all queues are moved.

    \b
    Examples:
      sluiceway migrate activemq /etc/activemq/instances-enabled/main --output sluiceway.toml
      sluiceway migrate activemq stomp://system:manager@old:61613 --messages --dry-run
      sluiceway migrate activemq stomp://system:manager@old:61613 --messages --queue orders
    """
    if messages:
        from sluiceway.cli.migrate_messages import Move
        from sluiceway.migration.translation import ACTIVEMQ

        names = list(move.queues) or [str(ACTIVEMQ.wildcard)]
        _run(Move(ACTIVEMQ, _stomp(source, move), address, names, move), move)
        return
    from sluiceway.migration.activemq import read
    from sluiceway.migration.findings import SourceError

    path = Path(source)
    if path.is_dir():
        path /= "activemq.xml"
    try:
        found = read(_bytes_of(path), partial(_beside, path))
    except SourceError as error:
        fail(Exit.FAULTY, f"{path}: {error}")
    _write(found, output)


def _beside(path: Path, name: str) -> bytes | None:
    """Return the content of a file in the folder of another one; None: it is not there."""
    found = path.parent / Path(name).name
    return _bytes_of(found) if found.is_file() else None


def _stomp(source: str, move: MoveOptions) -> Address:
    """Return the STOMP address of the other broker."""
    from sluiceway.client.address import Address

    if not source.startswith("stomp"):
        raise click.BadParameter(
            "with --messages it is the STOMP address of the other broker, stomp://USER:PASSWORD@HOST:61613",
            param_hint="SOURCE",
        )
    try:
        return Address.parse(source).as_user(None, move.source_passcode)
    except ValueError as error:
        raise click.BadParameter(f"with --messages: {error}", param_hint="SOURCE") from None


def _run(run: Move, move: MoveOptions) -> None:
    from sluiceway.migration.moving import MoveError

    try:
        if move.dry_run:
            run.dry_run()
        else:
            run.run()
    except MoveError as error:
        fail(Exit.CONNECT, str(error))


def _write(found: Findings, output: Path | None) -> None:
    text = found.toml()
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            fail(Exit.USAGE, f"{output} can't be written: {error.strerror}")
    for line in found.report:
        warn(line)


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        fail(Exit.USAGE, f"{path} can't be read: {error.strerror}")


def _definitions(source: str) -> Any:
    return (
        _asked(source, "/api/definitions", "definitions")
        if _is_url(source)
        else _document(_bytes_of(Path(source)), source)
    )


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _asked(url: str, path: str, what: str) -> Any:
    import base64
    import http.client
    import urllib.error
    import urllib.request

    parts = urllib.parse.urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(f"{parts.scheme}://{place}{parts.path.rstrip('/')}{path}")
    if parts.username:
        login = urllib.parse.unquote(parts.username)
        pair = f"{login}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return _document(answer.read(DOCUMENT_BYTES_MAX + 1), place)
    except urllib.error.HTTPError as error:
        error.close()
        fail(Exit.REFUSED, f"{place} answers {error.code} {error.reason}: {what} are for an administrator")
    except (OSError, http.client.HTTPException) as error:
        fail(Exit.CONNECT, f"{place} can't be reached: {getattr(error, 'reason', error) or type(error).__name__}")


def _document(data: bytes, where: str) -> Any:
    if len(data) > DOCUMENT_BYTES_MAX:
        fail(Exit.FAULTY, f"{where}: it is longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        fail(Exit.FAULTY, f"{where}: it is no JSON")
