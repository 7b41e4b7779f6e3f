"""`sluiceway migrate`: the configuration of another broker, written as one of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.suggestions import SuggestingGroup

if TYPE_CHECKING:
    from sluiceway.migration.findings import Findings

DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
ANSWER_SECONDS: Final = 60.0


@click.group(cls=SuggestingGroup)
def migrate() -> None:
    """Write the configuration of another broker as one for Sluiceway. Nothing is changed at the other one."""


@migrate.command()
@click.argument("source")
@click.option("--vhost", default="/", show_default=True, help="The virtual host to read; one broker here is for one.")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write, which must not exist [default: print it].",
)
def rabbitmq(source: str, vhost: str, output: Path | None) -> None:
    """Read queues, policies, users and permissions of RabbitMQ.

    SOURCE is a file of definitions (`rabbitmqctl export_definitions FILE`), or the address of the management port,
    http://USER:PASSWORD@HOST:15672. What has no equivalent here is listed, on standard error and at the head of the
    file.

    \b
    Examples:
      sluiceway migrate rabbitmq definitions.json --output sluiceway.toml
      sluiceway migrate rabbitmq http://guest:guest@localhost:15672 --vhost shop
    """
    from sluiceway.migration.findings import SourceError
    from sluiceway.migration.rabbitmq import read

    document = _asked(source) if source.startswith(("http://", "https://")) else _read(Path(source))
    try:
        found = read(document, vhost)
    except SourceError as error:
        fail(Exit.FAULTY, str(error))
    _write(found, output)


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


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _document(file.read(DOCUMENT_BYTES_MAX + 1), str(path))
    except OSError as error:
        fail(Exit.USAGE, f"{path} can't be read: {error.strerror}")


def _asked(url: str) -> Any:
    import base64
    import urllib.error
    import urllib.parse
    import urllib.request

    parts = urllib.parse.urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(f"{parts.scheme}://{place}{parts.path.rstrip('/')}/api/definitions")
    if parts.username:
        login = urllib.parse.unquote(parts.username)
        pair = f"{login}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return _document(answer.read(DOCUMENT_BYTES_MAX + 1), place)
    except urllib.error.HTTPError as error:
        error.close()
        fail(Exit.REFUSED, f"{place} answers {error.code} {error.reason}: definitions are for an administrator")
    except OSError as error:
        fail(Exit.CONNECT, f"{place} can't be reached: {getattr(error, 'reason', error)}")


def _document(data: bytes, where: str) -> Any:
    if len(data) > DOCUMENT_BYTES_MAX:
        fail(Exit.FAULTY, f"{where}: it is longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        fail(Exit.FAULTY, f"{where}: it is no JSON")
