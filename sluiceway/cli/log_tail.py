"""`sluiceway log tail`: prints records.

Without a group it uses `sluiceway.client.Consumer`, in batches, and survives a lost connection. With a group each
record is a MESSAGE of its own, acknowledged when it is printed, so that `--count 10` takes exactly ten; `--batch`
trades that for speed.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

import click

from sluiceway.cli.connecting import host_options
from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.log_asking import AskedPosition, asking, log_argument, place_option, size_option
from sluiceway.cli.messages import timeout_option
from sluiceway.flow.words import count_in_words

if TYPE_CHECKING:
    from sluiceway.client import Gap, Record
    from sluiceway.client.address import Address
    from sluiceway.protocols.stomp.frames import Frame

LAST_COUNT: Final = 10
"""Number of records without --from, as in `tail`."""
PREFETCH_COUNT: Final = 1000
_BATCH_BYTES: Final = 256 * 1024
_OF_THE_MESSAGE: Final = frozenset(
    {"destination", "subscription", "message-id", "ack", "content-length", "index", "timestamp", "redelivered",
     "delivery-count"}
)  # fmt: skip

Records = list["Record[bytes]"]


@click.command()
@log_argument
@click.option("-f", "--follow", is_flag=True, help="Don't stop at the end: wait for more until Ctrl-C.")
@click.option(
    "--from",
    "start",
    callback=place_option,
    metavar="PLACE",
    help="Where to begin: earliest, latest, next, INDEX, INDEX@LOGID (of that log, not of another one made under its "
    "name), -N, time:2026-11-21T20:15, time:MS, ago:15min  [default: -10; with --group next, and only if the group is "
    "new].",
)
@click.option("--to", "end", type=click.IntRange(min=0), metavar="INDEX", help="End before this index.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many records.")
@timeout_option
@click.option(
    "--group",
    help="Read as a consumer of this group: the broker keeps its place, each record goes to one of its consumers, and "
    "counts as done when it is printed. Waits for more, as --follow does.",
)
@click.option(
    "--batch",
    "batch_bytes",
    callback=size_option,
    metavar="SIZE",
    help="Ask for this many bytes of records at once  [default: 256KiB; with --group one record at a time].",
)
@click.option("-l", "--long", "as_long", is_flag=True, help="Print index, time and key in front of each record.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object for each record; a value that is not UTF-8 as value_base64.",
)
@click.option("--raw", is_flag=True, help="Print the bytes of the records, and nothing between them.")
@click.option("-o", "--output", type=click.File("wb", lazy=False), help="Print into this file.")
@click.option(
    "--on-gap",
    type=click.Choice(["tell", "error"]),
    default="tell",
    show_default=True,
    help="Handling of missing records: report them on standard error and continue, or end with 1.",
)
@host_options
def tail(
    address: Address,
    log: str,
    follow: bool,
    start: AskedPosition | None,
    end: int | None,
    count: int | None,
    timeout_seconds: float | None,
    group: str | None,
    batch_bytes: int | None,
    as_long: bool,
    as_json: bool,
    raw: bool,
    output: BinaryIO | None,
    on_gap: str,
) -> None:
    """Print records of LOG, by default the last ten: one line for each.

    Reading takes nothing away. The same range of indexes gives the same bytes each time, as long as it is kept.

    \b
    Examples:
      sluiceway log tail orders
      sluiceway log tail orders --follow --from next
      sluiceway log tail orders --from ago:1h --long
      sluiceway log tail orders --from 1000 --to 2000 --json | jq .value
      sluiceway log tail orders --from earliest --raw --output orders.bin
      sluiceway log tail orders --group billing --count 100
    """
    if sum([as_long, as_json, raw]) > 1:
        raise click.UsageError("--long, --json and --raw exclude each other")
    if group is not None and end is not None:
        raise click.UsageError("a group has no end: give --to without --group, or --count")
    begin = start.wire if start is not None else None
    if end is not None and begin is not None and begin.isdecimal() and int(begin) > end:
        raise click.UsageError(f"--to {end} is before --from {begin}: there is nothing between them")
    if group is not None and batch_bytes is not None and count is not None:
        raise click.UsageError("a group acknowledges whole batches: give --count without --batch")
    from sluiceway.client import Gap

    with asking(address) as client:
        described = client.request("describe", log=log)
    if start is None:
        start = AskedPosition("next") if group is not None else AskedPosition(None, LAST_COUNT)
    begin = start.in_log(described)
    printer = _Printer(sys.stdout.buffer if output is None else output, as_long=as_long, as_json=as_json, raw=raw)
    printer.gap_is_error = on_gap == "error"
    log_id = described.get("log_id", "")
    if start.log_id not in ("", log_id):
        begin = _begun_anew(Gap(log, str(address), int(begin), described["first"], "other-log"), printer)
    if group is None and begin in ("next", "latest"):
        # Fixed here: records appended while connecting are not missed.
        begin = str(described["next"] if begin == "next" else max(described["first"], described["next"] - 1))
    if begin.isdecimal() and int(begin) > described["next"]:
        fail(Exit.REFUSED, f"index {begin} is beyond the end of /log/{log}, whose next index is {described['next']}")
    if group is None and not follow:
        end = described["next"] if end is None else min(end, described["next"])
    if group is not None and batch_bytes is None:
        records = _grouped(address, log, log_id, group, begin, count, timeout_seconds, printer)
    else:
        records = _read(address, log, log_id, group, begin, end, batch_bytes or _BATCH_BYTES, timeout_seconds, printer)
    first = described["first"] if begin == "earliest" else int(begin) if begin.isdecimal() else None
    total = end - first if count is None and group is None and end is not None and first is not None else count
    endless = count is None and (follow or group is not None) and end is None
    _print_all(records, printer, count, total=total, endless=endless, timeout_seconds=timeout_seconds)


def _begun_anew(gap: Gap, printer: _Printer) -> str:
    """Return where to begin in this log when the position is of a deleted one. Raises GapError."""
    from sluiceway.client import GapError

    if printer.gap_is_error:
        raise GapError(gap)
    printer.gap(gap)
    return str(gap.end)


def _print_all(
    records: Iterator[Records],
    printer: _Printer,
    count: int | None,
    *,
    total: int | None,
    endless: bool,
    timeout_seconds: float | None,
) -> None:
    from sluiceway.cli.progress import shown

    interrupted = False
    try:
        with shown("reading", "records") as tell:
            for some in records:
                if count is not None:
                    some = some[: count - printer.written_count]
                printer.records(some)
                if tell is not None and not sys.stdout.isatty():
                    tell(printer.written_count, total)
                if printer.written_count == count:
                    break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        records.close()  # type: ignore[attr-defined]  # generators, both
    printed = printer.written_count
    if endless and interrupted:
        click.echo(f"{count_in_words(printed, 'record')} read", err=True)
    elif interrupted:
        fail(Exit.INCOMPLETE, f"interrupted after {count_in_words(printed, 'record')}")
    elif count is not None and printed < count:
        then = "that was the end" if timeout_seconds is None else f"the end, or none for {timeout_seconds:g} s"
        fail(Exit.INCOMPLETE, f"{printed} of {count} records came, then {then}")


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(
    address: Address,
    log: str,
    log_id: str,
    group: str | None,
    begin: str,
    end: int | None,
    batch_bytes: int,
    timeout_seconds: float | None,
    printer: _Printer,
) -> Iterator[Records]:
    """Yield records in batches. The request for the next batch acknowledges the last one."""
    from sluiceway.client import Consumer

    if group is None and begin.isdecimal() and end is not None and int(begin) >= end:
        return
    with Consumer(
        address,
        group=group,
        from_=f"{begin}@{log_id}" if begin.isdecimal() and log_id else begin,
        to=end,
        on_gap="error" if printer.gap_is_error else "report",
        gap_callback=printer.gap,
        batch_bytes=batch_bytes,
    ) as consumer:
        stream = consumer.stream(log)
        while records := stream.poll(timeout_seconds):
            yield records


def _grouped(
    address: Address,
    log: str,
    log_id: str,
    group: str,
    begin: str,
    count: int | None,
    timeout_seconds: float | None,
    printer: _Printer,
) -> Iterator[Records]:
    """Yield single records; the next request acknowledges the last one."""
    from sluiceway.client.link import Link

    # No more than this command will take: the rest stays free for other consumers.
    prefetch = PREFETCH_COUNT if count is None else min(count, PREFETCH_COUNT)
    headers = {"group": group, "from": begin, "prefetch-count": str(prefetch)}
    if log_id:
        headers["log-id"] = log_id
    if printer.gap_is_error:
        headers["on-gap"] = "error"
    taken_count = 0
    interrupted = False
    with Link(address) as link:
        link.subscribe(f"/log/{log}", ack="client-individual", headers=headers)
        try:
            while (message := link.next_message(timeout_seconds)) is not None:
                if _is_told(message.headers, log, str(address), printer):
                    continue
                taken_count += 1
                try:
                    yield [_record(message, log, str(address))]
                except GeneratorExit:
                    # No more are wanted. Acknowledge the last record only if it was printed.
                    if printer.records_count == taken_count:
                        link.acknowledge(message.headers["ack"])
                    return
                link.acknowledge(message.headers["ack"])
        except KeyboardInterrupt:
            interrupted = True  # not raised here: the acknowledgements must arrive
    if interrupted:
        raise KeyboardInterrupt


def _is_told(headers: Mapping[str, str], log: str, broker: str, printer: _Printer) -> bool:
    """Report a notice about the log; return whether the message is one."""
    from sluiceway.client import Gap, LogDeletedError

    if headers.get("log-deleted") == "true":
        raise LogDeletedError(f"log {log} at {broker} was deleted")
    if headers.get("gap") != "true":
        return False
    printer.gap(Gap(log, broker, int(headers["gap-from"]), int(headers["gap-to"]), headers["gap-reason"]))
    return True


def _record(message: Frame, log: str, broker: str) -> Record[bytes]:
    from sluiceway.client.records import Record, key_of

    headers = message.headers
    return Record(
        log=log,
        index=int(headers["index"]),
        timestamp_ms=int(headers.get("timestamp", 0)),
        key=key_of(headers),
        value=message.body,
        headers={name: value for name, value in headers.items() if name not in _OF_THE_MESSAGE},
        broker=broker,
    )


# -- printing ----------------------------------------------------------------------------------------------------------


class _Printer:
    """Printer of records and gaps, in one of four forms."""

    def __init__(self, out: IO[bytes], *, as_long: bool, as_json: bool, raw: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._form: Callable[[Record[bytes]], bytes] | None = _json_line if as_json else _long_line if as_long else None
        self._end = b"" if raw else b"\n"
        self.gap_is_error = False
        self.records_count = 0
        """Number of printed records."""
        self.written_count = 0
        """Number of records printed or in the buffer flushed at the end: a reader may interrupt the command at once."""

    def records(self, records: Records) -> None:
        """Print records and flush them: an acknowledged record must not be lost in a buffer."""
        form, end = self._form, self._end
        if form is None:
            parts = [record.value for record in records]
        else:
            parts = [form(record) for record in records]
        self._out.write(end.join([*parts, b""]))
        self.written_count += len(records)
        self._out.flush()
        self.records_count += len(records)

    def gap(self, gap: Gap) -> None:
        """Report that records are gone."""
        if self._as_json:
            facts = {"gap_from": gap.first, "gap_to": gap.end, "gap_reason": gap.reason}
            self._out.write(json.dumps(facts).encode() + b"\n")
            self._out.flush()
        if gap.reason == "other-log":
            click.echo(
                f"sluiceway: this log was made anew: continuing at its index {gap.end}, not at {gap.first}", err=True
            )
            return
        what = f"record {gap.first} is" if gap.end == gap.first + 1 else f"records {gap.first} to {gap.end - 1} are"
        click.echo(f"sluiceway: {what} gone ({gap.reason})", err=True)


def _json_line(record: Record[bytes]) -> bytes:
    shown: dict[str, Any] = {"index": record.index, "timestamp_ms": record.timestamp_ms}
    key = record.key
    if key is not None:
        _put(shown, "key", key)
    headers = {name: value for name, value in record.headers.items() if name not in ("key", "key-base64")}
    if headers:
        shown["headers"] = headers
    _put(shown, "value", record.value)
    return json.dumps(shown, ensure_ascii=False).encode()


def _put(shown: dict[str, Any], name: str, value: bytes) -> None:
    try:
        shown[name] = value.decode("utf-8")
    except UnicodeDecodeError:
        shown[f"{name}_base64"] = base64.b64encode(value).decode("ascii")


def _long_line(record: Record[bytes]) -> bytes:
    from sluiceway.cli.log_view import time_in_words

    key = record.key
    said = f"{record.index}  {time_in_words(record.timestamp_ms) or '-'}  "
    return said.encode() + (b"" if key is None else key + b"  ") + record.value
