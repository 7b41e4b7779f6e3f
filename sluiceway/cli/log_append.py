"""`sluiceway log append`: lines or whole files to records, by a `sluiceway.client.Producer`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import click

from sluiceway.cli.connecting import host_options, in_words
from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.log_asking import asking, log_argument
from sluiceway.cli.messages import header_option
from sluiceway.cli.waiting import say_that_it_waits, watched
from sluiceway.flow.words import count_in_words

if TYPE_CHECKING:
    from sluiceway.client import Producer, Sent
    from sluiceway.client.address import Address
    from sluiceway.client.producer import Compression

READ_BYTES: Final = 1 << 20
GIVE_UP_SECONDS: Final = 10.0
"""Time limit without a broker. It was reachable at the start."""

Told = Callable[[int, int | None], None]


@click.command()
@log_argument
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option("--whole", is_flag=True, help="Make one record of each FILE, however many lines it has.")
@click.option(
    "--key-separator",
    "separator",
    metavar="TEXT",
    help="A line is KEY, then this text, then the value; one without it has no key. \\t is a tab.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "zstd"]),
    default="none",
    show_default=True,
    help="Of the batches that the records travel and are stored in.",
)
@header_option
@host_options
def append(
    address: Address,
    log: str,
    files: tuple[BinaryIO, ...],
    whole: bool,
    separator: str | None,
    compression: str,
    headers: dict[str, str],
) -> None:
    """Append records to LOG, which is made if there is none: a record for each line of FILE, or of standard input.

    Lines end with a newline, which is not part of the record; an empty line is an empty record. The command ends when
    all of them have an index and are as safe as the broker keeps that log, by default synced to its disk. If the
    connection is lost on the way, what was not confirmed is sent again, so some records may come twice.

    \b
    Examples:
      echo '{"id": 7, "ducks": 42}' | sluiceway log append orders
      sluiceway log append access /var/log/nginx/access.log --compression zstd
      journalctl -f -o json | sluiceway log append journal
      sluiceway log append prices --key-separator : prices.txt
      sluiceway log append pictures --whole *.png
    """
    from sluiceway.cli.waiting import PATIENCE_SECONDS
    from sluiceway.client import Producer

    if whole and separator is not None:
        raise click.UsageError("--key-separator is for lines; with --whole there are none")
    if separator == "":
        raise click.UsageError("--key-separator is empty: no key ends anywhere")
    if not files:
        if sys.stdin.isatty() and whole:
            raise click.UsageError("give a FILE, or pipe one in")
        files = (sys.stdin.buffer,)
    try:
        producer = Producer(
            address,
            log,
            compression=cast("Compression", compression),
            headers=headers,
            give_up_seconds=GIVE_UP_SECONDS,
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--header") from None
    _check_that_it_is_there(address, log)
    split_at = None if separator is None else separator.replace("\\t", "\t").encode()

    def progress() -> tuple[int, bool]:
        now = producer.statistics()
        return now.records_count, now.held_bytes > 0

    with watched(progress, PATIENCE_SECONDS, lambda: say_that_it_waits(address)):
        _send(producer, log, files, whole=whole, separator=split_at)


def _check_that_it_is_there(address: Address, log: str) -> None:
    """End the command unless the broker answers. A producer would try for a while."""
    from sluiceway.client import RequestError

    with asking(address) as client:
        try:
            client.request("describe", log=log)
        except RequestError as error:
            if error.code != "TOPIC_NOT_EXIST":
                fail(Exit.REFUSED, in_words(error))


def _send(
    producer: Producer[Sent], log: str, files: tuple[BinaryIO, ...], *, whole: bool, separator: bytes | None
) -> None:
    from sluiceway.cli.progress import shown
    from sluiceway.client import ClientError, RefusedError

    first: Sent | None = None
    try:
        with shown("appending", "bytes") as tell:
            if whole:
                for file in files:
                    first = _first(first, producer.send(file.read()))
            else:
                for lines in _lines(files, tell):
                    first = _first(first, _send_lines(producer, lines, separator))
            producer.close()
    except KeyboardInterrupt:
        # Records under way may still arrive: report the confirmed ones.
        _give_up(producer)
        fail(Exit.INCOMPLETE, f"interrupted: {_confirmed(producer)} in /log/{log} for certain")
    except (ClientError, TimeoutError) as error:
        _give_up(producer)
        code = Exit.REFUSED if isinstance(error, RefusedError) else Exit.CONNECT
        fail(code, f"{error}\n{_confirmed(producer)} in /log/{log} for certain")
    count = producer.statistics().records_count
    if first is None:
        click.echo(f"nothing to append to /log/{log}: the input is empty")
    else:
        click.echo(f"{count_in_words(count, 'record')} appended to /log/{log}, from index {first.result(0)}")


def _first(first: Sent | None, sent: Sent) -> Sent:
    return sent if first is None else first


def _send_lines(producer: Producer[Sent], lines: list[bytes], separator: bytes | None) -> Sent:
    if separator is None:
        return producer.send_many(lines)
    first: Sent | None = None
    for line in lines:
        key, found, value = line.partition(separator)
        first = _first(first, producer.send(value, key=key) if found else producer.send(line))
    assert first is not None, "there are lines"
    return first


def _confirmed(producer: Producer[Any]) -> str:
    count = producer.statistics().records_count
    return f"{count_in_words(count, 'record')} {'is' if count == 1 else 'are'}"


def _give_up(producer: Producer[Any]) -> None:
    """Close without waiting for receipts."""
    from sluiceway.client import ClientError

    try:
        producer.close(timeout_seconds=0)
    except (ClientError, TimeoutError):
        pass  # the failure that is being reported


def _lines(files: Iterable[BinaryIO], tell: Told | None) -> Iterator[list[bytes]]:
    """Yield the lines of all files, as they arrive."""
    total = _size_of(files) if tell is not None else None
    done = 0
    for file in files:
        left: list[bytes] = []
        """Beginning of a line whose end has not arrived yet."""
        # From a pipe read the available bytes, not a whole megabyte.
        read: Callable[[int], bytes] = getattr(file, "read1", file.read)
        while data := read(READ_BYTES):
            done += len(data)
            if tell is not None:
                tell(done, total)
            lines = data.split(b"\n")
            end = lines.pop()
            if lines:
                lines[0] = b"".join([*left, lines[0]])
                left = []
                yield lines
            if end:
                left.append(end)
        if left:
            yield [b"".join(left)]


def _size_of(files: Iterable[BinaryIO]) -> int | None:
    """Return the total size in bytes; None if one is no regular file."""
    total = 0
    for file in files:
        try:
            size_bytes = os.fstat(file.fileno()).st_size
        except OSError:
            return None
        if not size_bytes:
            return None
        total += size_bytes
    return total
