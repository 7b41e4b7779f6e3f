"""`sluiceway send`, `sluiceway receive` and `sluiceway browse`, for any STOMP 1.2 broker."""

from __future__ import annotations

import base64
import json
import sys
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from sluiceway.cli.completion import complete_destination
from sluiceway.cli.connecting import host_options
from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.waiting import say_that_it_waits, watched
from sluiceway.flow.words import count_in_words

if TYPE_CHECKING:
    from sluiceway.client.address import Address
    from sluiceway.protocols.stomp.frames import Frame

RECEIPTS_PENDING_MAX: Final = 100
"""Receipts pending at most: enough to hide the round trip; far below the broker's default limit of 1,000."""


def _headers(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for value in values:
        name, colon, content = value.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{value!r}: write NAME:VALUE")
        headers[name.strip()] = content.strip()
    return headers


def _named(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty: name one, such as /queue/orders")
    return value


_destination_argument = click.argument("destination", shell_complete=complete_destination, callback=_named)

timeout_option = click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End after this time without a message.",
)


header_option = click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME:VALUE",
    multiple=True,
    callback=_headers,
    help="A header; may be repeated.",
)


@click.command()
@_destination_argument
@click.argument("body", required=False)
@click.option("--file", type=click.File("rb"), help="Take the body from this file.")
@header_option
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send the message this many times [default: 1].")
@click.option("--lines", is_flag=True, help="Send each line of --file, or of standard input, as a message of its own.")
@click.option("--persistent", is_flag=True, help="Ask the broker to keep it over a restart (persistent:true).")
@click.option(
    "--producer-id",
    metavar="ID",
    help="Number the messages as those of this producer: what is sent again, from the beginning and with the same ID, "
    "is not taken twice. Another file needs another ID.",
)
@click.option(
    "--sequence",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="With --producer-id: number of the first message, the next ones count up; with --lines 1 by default.",
)
@click.option(
    "--sequence-column",
    metavar="COLUMN",
    help="With --producer-id and --lines: take each number from this column, by its place (1, 2, ...) or by its name "
    "in the first line, which is then not sent. Numbers ascend.",
)
@click.option(
    "--separator", default=",", show_default=True, metavar="CHARACTER", help="What separates the columns of a line."
)
@click.option(
    "--receipt/--no-receipt",
    default=True,
    help="Wait until the broker has processed each message [default: --receipt].",
)
@host_options
def send(
    address: Address,
    destination: str,
    body: str | None,
    file: BinaryIO | None,
    headers: dict[str, str],
    count: int,
    lines: bool,
    persistent: bool,
    producer_id: str | None,
    sequence: int | None,
    sequence_column: str | None,
    separator: str,
    receipt: bool,
) -> None:
    """Send a message to DESTINATION.

    BODY is the text of the message; `-`, or nothing when something is piped in, reads it from standard input.

    \b
    Examples:
      sluiceway send /queue/hello "Hello, world"
      sluiceway send /topic/prices -H symbol:ABC -H priority:7 101.5
      sluiceway send /queue/orders --persistent --file order.json -H content-type:application/json
      date | sluiceway send /queue/hello -
      sluiceway send /queue/load --count 10000 --no-receipt x
      sluiceway send /queue/orders --persistent --lines --file orders.jsonl --producer-id orders-2026-11
      sluiceway send /queue/orders --lines --file o.csv --producer-id shop-7 --sequence-column id
    """
    from sluiceway.cli.numbered import NumberingError, copies, lines_by_column, lines_of
    from sluiceway.cli.waiting import PATIENCE_SECONDS
    from sluiceway.client.errors import ConnectionLostError
    from sluiceway.client.link import Link
    from sluiceway.queues.names import are_swapped

    if file is not None and body is not None:
        raise click.UsageError("give BODY or --file, not both")
    if lines and (body not in (None, "-") or count != 1):
        raise click.UsageError(
            "--lines sends the lines of --file or of standard input, once: leave out BODY and --count"
        )
    _check_numbering(producer_id, sequence, sequence_column, separator, lines=lines)
    if body is not None and are_swapped(destination, body):
        raise click.UsageError(
            f"DESTINATION comes first: sluiceway send {quote(body)} {quote(destination)}. If the text {body!r} is for "
            f"the queue {destination!r}, write its full name: /queue/{destination}"
        )
    source = file
    if source is None and (body is None or body == "-"):
        if body is None and sys.stdin.isatty():
            raise click.UsageError("no BODY: give it as an argument, with --file, or pipe it in")
        source = sys.stdin.buffer
    first = 1 if sequence is None else sequence
    if source is None:
        assert body is not None, "it comes from somewhere"
        messages = copies(body.encode("utf-8"), count, first)
        headers.setdefault("content-type", "text/plain;charset=utf-8")
    elif not lines:
        messages = copies(source.read(), count, first)
    elif sequence_column is None:
        messages = lines_of(source, first)
    else:
        messages = lines_by_column(source, sequence_column, separator)
    if producer_id is not None:
        headers["producer-id"] = producer_id
    if persistent:
        headers["persistent"] = "true"
    say = partial(say_that_it_waits, address)
    sent_count = 0

    def progress() -> tuple[int, bool]:
        return 2 * sent_count - link.receipts_pending_count, True

    fault: NumberingError | None = None
    try:
        with Link(address) as link, watched(progress, PATIENCE_SECONDS, say):
            try:
                for number, content in messages:
                    if producer_id is not None:
                        headers["producer-sequence"] = str(number)
                    link.send(destination, content, headers, receipt=receipt)
                    sent_count += 1
                    link.wait_receipts(RECEIPTS_PENDING_MAX)
            except NumberingError as error:
                fault = error
            link.wait_receipts()
    except ConnectionLostError:
        if producer_id is not None:
            click.echo("sluiceway: run the command again: what the broker has taken is not taken twice", err=True)
        raise
    if fault is not None:
        fail(Exit.USAGE, f"{fault}.\nSent before it: {count_in_words(sent_count, 'line')}.")


def _check_numbering(
    producer_id: str | None, sequence: int | None, column: str | None, separator: str, *, lines: bool
) -> None:
    """Refuse, in words, options that do not go together."""
    if producer_id is None:
        if sequence is not None or column is not None:
            raise click.UsageError(
                "--sequence and --sequence-column number the messages of a producer: add --producer-id"
            )
    elif not lines and sequence is None:
        raise click.UsageError("--producer-id needs the number of the message: add --sequence, or --lines")
    if column is not None and (not lines or sequence is not None):
        raise click.UsageError("--sequence-column goes with --lines, and without --sequence")
    if column is not None and (not column or (column.isdecimal() and int(column) == 0)):
        raise click.UsageError("--sequence-column: columns are counted from 1, or have a name")
    if len(separator) != 1 or separator in '\r\n"':
        raise click.UsageError(f"--separator {separator!r}: it should be one character, such as ; (of a tab: $'\\t')")


_show_headers_option = click.option(
    "--headers", "show_headers", is_flag=True, help="Print the headers before each body (format text)."
)

_format_option = click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "body"]),
    default="text",
    show_default=True,
    help="text: one body per line. json: one object per line, with headers; a body that is not UTF-8 as body_base64. "
    "body: the bytes, nothing between them.",
)


_selector_option = click.option(
    "--selector",
    metavar="CONDITION",
    help="Only messages whose headers meet this condition, such as \"color = 'red' AND size > 3\".",
)


def _select(headers: dict[str, str], selector: str | None) -> None:
    if selector is not None:
        headers["selector"] = selector


@click.command()
@_destination_argument
@click.option("--count", type=click.IntRange(min=1), help="End after this many messages [default: run until Ctrl-C].")
@timeout_option
@click.option(
    "--ack",
    type=click.Choice(["auto", "client", "client-individual"]),
    default="client-individual",
    show_default=True,
    help="When a message counts as consumed: `auto` as soon as it was sent, so some may be lost when the command "
    "stops; the others when it was printed.",
)
@_selector_option
@_show_headers_option
@_format_option
@header_option
@host_options
def receive(
    address: Address,
    destination: str,
    count: int | None,
    timeout_seconds: float | None,
    ack: str,
    selector: str | None,
    show_headers: bool,
    output: str,
    headers: dict[str, str],
) -> None:
    """Print the messages of DESTINATION as they arrive.

    \b
    Examples:
      sluiceway receive /queue/hello
      sluiceway receive /queue/orders --count 1 --timeout 5 --format body > order.json
      sluiceway receive '/topic/prices.>' --headers
      sluiceway receive /queue/orders --format json | jq .headers
      sluiceway receive /queue/orders --selector "priority > 4 AND region IN ('eu', 'us')"
    """
    from sluiceway.client.link import Link

    _select(headers, selector)
    if count is not None and ack != "auto":
        # No more than this command will take: the rest stays free for other consumers.
        headers.setdefault("prefetch-count", str(min(count, 1000)))
    received, interrupted = 0, False
    with Link(address) as link:
        # Told on a terminal, so that a sender can be started after it: a topic keeps nothing for later subscribers.
        is_told = sys.stderr.isatty()
        link.subscribe(destination, ack=ack, headers=headers, receipt="subscribed" if is_told else None)
        try:
            while count is None or received < count:
                message = link.next_frame(timeout_seconds) if is_told else link.next_message(timeout_seconds)
                if message is None:
                    break
                is_told = False
                if message.command == "RECEIPT":
                    click.echo(f"subscribed to {destination}", err=True)
                    continue
                _print(message, output, show_headers)
                # After printing: a broken pipe must not lose a message.
                if ack != "auto":
                    link.acknowledge(message.headers["ack"])
                received += 1
        except KeyboardInterrupt:
            interrupted = True
            if count is None:
                click.echo(f"{count_in_words(received, 'message')} received", err=True)
    if count is not None and received < count:
        then = "it was interrupted" if interrupted else f"none for {timeout_seconds:g} s"
        fail(Exit.INCOMPLETE, f"{received} of {count} messages came, then {then}")


@click.command()
@_destination_argument
@click.option("--count", type=click.IntRange(min=1), help="Show at most this many messages [default: all].")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Give up after this time without a message or the end.",
)
@_selector_option
@_show_headers_option
@_format_option
@header_option
@host_options
def browse(
    address: Address,
    destination: str,
    count: int | None,
    timeout_seconds: float,
    selector: str | None,
    show_headers: bool,
    output: str,
    headers: dict[str, str],
) -> None:
    """Print the messages of the queue DESTINATION without consuming them.

    The highest priority first, then in order; messages delivered to consumers and not acknowledged are shown, too.

    \b
    Examples:
      sluiceway browse /queue/hello
      sluiceway browse /queue/orders --count 10 --headers
      sluiceway browse /queue/orders --format json | jq .headers
      sluiceway browse /queue/orders --selector "JMSCorrelationID = 'order-17'"
    """
    from sluiceway.client.link import Link

    _select(headers, selector)
    headers["browser"] = "true"
    shown = 0
    with Link(address) as link:
        # Nothing is acknowledged. With ack auto, a broker without browsing would lose messages to this command.
        link.subscribe(destination, ack="client-individual", headers=headers)
        while count is None or shown < count:
            message = link.next_message(timeout_seconds)
            if message is None:
                fail(
                    Exit.INCOMPLETE,
                    f"{shown} messages came, then neither another nor the end for {timeout_seconds:g} s: "
                    "is it a broker that knows browser:true?",
                )
            if message.headers.get("browser") == "end":
                break
            _print(message, output, show_headers)
            shown += 1


def _print(message: Frame, output: str, show_headers: bool) -> None:
    stdout = sys.stdout.buffer
    if output == "body":
        stdout.write(message.body)
    elif output == "json":
        shown: dict[str, Any] = {"headers": dict(message.headers)}
        try:
            shown["body"] = message.body.decode("utf-8")
        except UnicodeDecodeError:
            shown["body_base64"] = base64.b64encode(message.body).decode("ascii")
        stdout.write(json.dumps(shown, ensure_ascii=False).encode("utf-8") + b"\n")
    else:
        if show_headers:
            lines = "".join(f"{name}: {value}\n" for name, value in message.headers.items())
            stdout.write(lines.encode("utf-8") + b"\n")
        stdout.write(message.body + b"\n")
    stdout.flush()
