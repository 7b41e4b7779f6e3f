"""`sluiceway store`: check, repair, export and import, of a folder while its broker does not run, or of a database."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, cast

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.sources import config_option, data_layers, data_option
from sluiceway.cli.suggestions import SuggestingGroup
from sluiceway.flow.words import count_in_words, size_in_words

if TYPE_CHECKING:
    from rich.console import Console

    from sluiceway.protocols.stomp.head import SendHead
    from sluiceway.queues.message import Envelope
    from sluiceway.store.engine import Engine
    from sluiceway.store.maintenance.bodies import Bodies
    from sluiceway.store.maintenance.check import CheckReport
    from sluiceway.store.maintenance.importing import ImportReport
    from sluiceway.store.postgresql_snapshot import PostgresqlSnapshot

FAULTS_SHOWN_MAX: Final = 20
PIPED_WIDTH: Final = 160
"""Characters per line without a terminal."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_LEVEL: Final = 3
"""Takes less than half the time of the usual 6, for a seventh more bytes."""

_FOLDER_REMEDY: Final = (
    "`sluiceway store repair --dry-run` says what a repair would do. Copy the folder before you repair it."
)
_DATABASE_REMEDY: Final = (
    "A broker that starts replaces small records that it can't read; a backup of the database (pg_dump) brings back "
    "the rest. `sluiceway store export` leaves out what can't be read."
)

_PACKED_BYTES: Final = 1 << 18
"""Size of the buffer before compression: each single line would cost a call for the checksum and one for the
packing.
"""


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Maintain the data folder of a broker that does not run.

    The folder is the broker's: --data, else the setting broker.data_dir (from --config FILE, SLUICEWAY_CONFIG or
    SLUICEWAY_BROKER__DATA_DIR), else ./sluiceway-data. A folder in use by a broker is refused: stop that broker first.
    Of a folder with several shards, check, repair and compact go through all of them; export and import take one:
    --shard 7.

    Where the configuration says store.engine = "postgresql", check, export and import are for that database. The first
    two do not disturb the brokers on it; an import needs a shard that no broker has.

    \b
    Examples:
      sluiceway store check
      sluiceway store export --output backup.jsonl.gz
      sluiceway store import backup.jsonl.gz --data new-folder
      sluiceway store repair --dry-run
      sluiceway store compact
    """


def _of_each_shard(command: Callable[..., None]) -> Callable[..., None]:
    """Call the command for the folder, or for that of each shard, one after the other. Ends with the highest code."""

    @wraps(command)
    def of_each(folder: Path, shard: int | None, **options: Any) -> None:
        from sluiceway.store.shard_folders import look_for_shards

        if shard is not None:
            command(folder=_folder_of(folder, shard), **options)
            return
        _in_turn([partial(command, folder=each, **options) for each in look_for_shards(folder) or (folder,)])

    return of_each


def _in_turn(calls: Iterable[Callable[[], None]]) -> None:
    """Call all of them, one after the other. Ends with the highest code."""
    worst = 0
    for call in calls:
        try:
            call()
        except click.exceptions.Exit as ended:
            worst = max(worst, ended.exit_code)
    if worst:
        raise click.exceptions.Exit(worst)


def _folder_of(folder: Path, shard: int) -> Path:
    """Return the folder of a shard. Refuses one that is not there, in words."""
    from sluiceway.store.shard_folders import look_for_shards

    shards = look_for_shards(folder)
    if shards is None or shard >= shards.shards_count:
        count = 1 if shards is None else shards.shards_count
        fail(Exit.USAGE, f"{folder} has {count_in_words(count, 'shard')}: there is no shard {shard}")
    return shards.folder(shard)


def _of_one_shard(command: Callable[..., None]) -> Callable[..., None]:
    """Refuse a folder with several shards, in words."""

    @wraps(command)
    def of_one(folder: Path, shard: int | None, **options: Any) -> None:
        from sluiceway.store.shard_folders import look_for_shards

        if shard is not None:
            folder = _folder_of(folder, shard)
        elif (shards := look_for_shards(folder)) is not None:
            fail(Exit.USAGE, f"{folder} has {shards.shards_count} shards: name one of them, such as --shard 0")
        command(folder=folder, **options)

    return of_one


def _folder_options(
    *, in_database: Callable[..., None] | None = None, instead: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that select the store, pass its folder to the command as `folder`, and report its faults.
    `in_database`: called in place of the command, with `url` and `shard`, where the messages are in a database; None:
    that is refused, with what to do `instead`.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @data_option()
        @config_option("Configuration file (TOML) of the broker, for its data_dir or its database.")
        @click.option(
            "--shard", type=click.IntRange(min=0), metavar="N", help="Only this shard, where there are several."
        )
        @wraps(command)
        def with_folder(data_dir: str | None, config_file: Path | None, shard: int | None, **options: Any) -> None:
            from sluiceway.config import ConfigError, load
            from sluiceway.extras import MissingExtraError
            from sluiceway.queues.large import BodyError
            from sluiceway.store.directory import DirectoryError
            from sluiceway.store.engine import EngineError
            from sluiceway.store.keys import StoreFormatError

            flags = data_layers(data_dir)
            try:
                config = load(config_file, environment=os.environ, flags=flags, tell=warn)
            except ConfigError as error:
                fail(Exit.USAGE, f"the configuration can't be used:\n{error}")
            is_database = config.store.engine == "postgresql" and data_dir is None
            if is_database and in_database is None:
                fail(
                    Exit.USAGE,
                    f'the messages are in a database (store.engine = "postgresql"): {instead}. For a data folder, name '
                    "it with --data",
                )
            try:
                if is_database:
                    assert in_database is not None, "else it is refused"
                    in_database(url=config.store.url, shard=shard, **options)
                else:
                    command(folder=Path(config.broker.data_dir), shard=shard, **options)
            except StoreFormatError as error:
                fail(Exit.STORE, f"{error}\n`sluiceway store check` lists other faults, `repair` repairs what it can.")
            except (DirectoryError, EngineError, BodyError) as error:
                fail(Exit.STORE, str(error))
            except MissingExtraError as error:
                fail(Exit.USAGE, str(error))

        return with_folder

    return with_options


@contextmanager
def _snapshot(url: str, shard: int) -> Iterator[PostgresqlSnapshot]:
    """One moment of a shard in a database."""
    from sluiceway.extras import needs

    with needs("postgresql", 'store.engine = "postgresql"'):
        from sluiceway.store.postgresql_snapshot import PostgresqlSnapshot
    with PostgresqlSnapshot(url, shard=shard) as snapshot:
        yield snapshot


def _shards_of(url: str, shard: int | None) -> tuple[list[int], int]:
    """Return the shards of a database to look at, and how many it has. Refuses one that it does not have, in words."""
    with _snapshot(url, 0) as snapshot:
        shards = snapshot.shards()
        if shard is not None and shard not in shards:
            fail(Exit.USAGE, f"{snapshot.place} has {count_in_words(len(shards), 'shard')}: there is no shard {shard}")
    return shards if shard is None else [shard], len(shards)


def _one_shard_of(url: str, shard: int | None) -> tuple[int, int]:
    """Return the shard of a database to use, and how many it has. Refuses to choose among several, in words."""
    shards, shards_count = _shards_of(url, shard)
    if len(shards) > 1:
        fail(Exit.USAGE, f"the database has {shards_count} shards: name one of them, such as --shard 0")
    return shards[0], shards_count


def _place_in(place: str, shard: int, shards_count: int) -> str:
    """Return the name of a shard in a database."""
    return place if shards_count == 1 else f"{place}, shard {shard}"


# -- check and repair --------------------------------------------------------------------------------------------------


def _check_database(url: str, shard: int | None, *, as_json: bool) -> None:
    """Check shards in a database."""
    shards, shards_count = _shards_of(url, shard)
    _in_turn([partial(_check_shard, url, number, shards_count, as_json=as_json) for number in shards])


def _check_shard(url: str, shard: int, shards_count: int, *, as_json: bool) -> None:
    from sluiceway.cli.progress import shown
    from sluiceway.protocols.stomp.header_codec import HeaderCodec
    from sluiceway.store.maintenance.bodies import StoredBodies
    from sluiceway.store.maintenance.check import check as look

    with shown("checking") as tell, _snapshot(url, shard) as snapshot:
        report = look(snapshot, HeaderCodec(), bodies=StoredBodies(snapshot), on_progress=tell)
        place = _place_in(snapshot.place, shard, shards_count)
    _tell_check(report, place, as_json=as_json, remedy=_DATABASE_REMEDY)


@store.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, for programs.")
@_folder_options(in_database=_check_database)
@_of_each_shard
def check(folder: Path, as_json: bool) -> None:
    """Read everything in the store, and report its contents and faults.

    Changes nothing (but LevelDB reads its log into a table, as with every opening). Ends with 7 if there are faults.

    \b
    Examples:
      sluiceway store check
      sluiceway store check --data /var/lib/sluiceway --json | jq .faults
    """
    from sluiceway.cli.progress import shown
    from sluiceway.protocols.stomp.header_codec import HeaderCodec
    from sluiceway.store.maintenance.check import check_folder

    with shown("checking") as tell:
        report = check_folder(folder, HeaderCodec(), on_progress=tell)
    _tell_check(report, str(folder), as_json=as_json, remedy=_FOLDER_REMEDY)


def _tell_check(report: CheckReport, place: str, *, as_json: bool, remedy: str) -> None:
    """Show a report. Ends with 7 if it has faults."""
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show_check(report, place, remedy)
    if report.fault_counts:
        raise click.exceptions.Exit(int(Exit.FAULTY))


@store.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@_folder_options(
    instead="a broker that starts replaces small records that it can't read, `sluiceway store export` leaves out what "
    "can't be read, and a backup of the database (pg_dump) brings back the rest"
)
@_of_each_shard
def repair(folder: Path, dry_run: bool) -> None:
    """Repair the faults that `check` finds, as far as possible.

    A database that LevelDB can't read is repaired by LevelDB. Then record by record: unreadable records are moved to
    the folder `attic/`, records that follow from others are made again, orphaned records are deleted. Running it again
    does no harm. Ends with 7 if faults are left (with --dry-run: if there are any).

    Copy the folder before: a copy is the only way back.

    \b
    Examples:
      cp -a sluiceway-data sluiceway-data.before
      sluiceway store repair --dry-run
      sluiceway store repair
    """
    from sluiceway.cli.progress import shown
    from sluiceway.protocols.stomp.header_codec import HeaderCodec
    from sluiceway.store.maintenance.mending import repair as mend
    from sluiceway.store.maintenance.opening import open_folder

    with shown("looking for faults") as tell, open_folder(folder) as directory:
        mended = mend(directory, HeaderCodec(), dry_run=dry_run, on_progress=tell)
        attic = directory.attic.path
    found = mended.found
    if not found.fault_counts and mended.database is None:
        click.echo(f"{folder}: nothing is wrong, and nothing was done")
        return
    console = _console()
    _show_faults(console, found, mends=True)
    if dry_run:
        click.echo("nothing was done: this was a dry run. Copy the folder before you repair it in earnest.")
        raise click.exceptions.Exit(int(Exit.FAULTY))
    if mended.database is not None:
        click.echo(str(mended.database))
    aside = (
        f"; {count_in_words(mended.aside_count, 'record')} moved to quarantine, {attic}" if mended.aside_count else ""
    )
    # Repairs by LevelDB are reported above, and not counted.
    if mended.done_count or mended.database is None:
        click.echo(f"{count_in_words(mended.done_count, 'fault')} repaired{aside}")
    left = mended.left
    if left is not None and left.fault_counts:
        if not mended.done_count and mended.database is None:
            click.echo("these faults can't be repaired: see the remedies above")
            raise click.exceptions.Exit(int(Exit.FAULTY))
        click.echo(f"{count_in_words(left.fault_counts.total(), 'fault')} left:")
        _show_faults(console, left, mends=True)
        raise click.exceptions.Exit(int(Exit.FAULTY))
    there = "" if left is None else f", with {count_in_words(left.messages_count, 'message')}"
    click.echo(f"the store is whole now{there}")
    if mended.database is not None:
        click.echo("(LevelDB does not say how many messages were in what it could not read: they are lost)")


def _show_check(report: CheckReport, place: str, remedy: str) -> None:
    console = _console()
    said = [
        f"{place}: {count_in_words(report.messages_count, 'message')}",
        count_in_words(len(report.queues), "queue"),
        count_in_words(report.durables_count, "durable subscription"),
        f"{size_in_words(report.size_bytes)} on disk",
    ]
    click.echo(", ".join(said))
    _show_queues(console, report)
    for note in report.notes:
        click.echo(f"note: {note}")
    _show_faults(console, report, mends=False)
    if report.fault_counts:
        click.echo(remedy)
    else:
        click.echo("no faults")


def _show_queues(console: Console, report: CheckReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    if not report.queues:
        return
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("destination", overflow="fold")
    for heading in ("priority", "messages", "size", "seen before", "settled", "chunks"):
        table.add_column(heading, justify="right", no_wrap=True)
    for queue in report.queues:
        table.add_row(
            escape(queue.said),
            str(queue.priority),
            f"{queue.messages_count:,}",
            size_in_words(queue.wire_bytes),
            f"{queue.seen_count:,}",
            f"{queue.settled_count:,}",
            f"{queue.chunks_count:,}",
        )
    console.print(table)


def _show_faults(console: Console, report: CheckReport, *, mends: bool) -> None:
    from rich.markup import escape

    count = report.fault_counts.total()
    if not count:
        return
    lost = f", {count_in_words(report.lost_count, 'message')} lost by them" if report.lost_count else ""
    console.print(f"[bold red]{count_in_words(count, 'fault')}{lost}[/]", highlight=False, soft_wrap=True)
    for fault in report.faults[:FAULTS_SHOWN_MAX]:
        console.print(f"  {escape(f'{fault.where}: {fault.what}')}", highlight=False, soft_wrap=True)
        if mends:
            console.print(f"    repair: {escape(fault.mend)}", highlight=False, soft_wrap=True)
    if count > FAULTS_SHOWN_MAX:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in report.fault_counts.most_common())
        click.echo(f"  … and {count - FAULTS_SHOWN_MAX:,} more; all of them by kind: {kinds}")
    if not report.complete:
        click.echo("  LevelDB could not read on: there may be more")


# -- export and import -------------------------------------------------------------------------------------------------


def _export_database(url: str, shard: int | None, *, output: str, patterns: tuple[str, ...]) -> None:
    """Export a shard in a database."""
    from sluiceway.store.maintenance.bodies import StoredBodies

    number, _shards_count = _one_shard_of(url, shard)
    with _snapshot(url, number) as snapshot:
        _export(snapshot, StoredBodies(snapshot), output, patterns)


@store.command()
@click.option(
    "--output",
    "-o",
    "output",
    default="-",
    metavar="FILE",
    help="Where to; a name that ends with .gz is compressed; `-` is standard output [default: -].",
)
@click.option(
    "--queue",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only these destinations: a name, or a pattern with * and >. May be repeated.",
)
@_folder_options(in_database=_export_database)
@_of_one_shard
def export(folder: Path, output: str, patterns: tuple[str, ...]) -> None:
    """Write all messages and durable subscriptions as lines of JSON.

    Each line is an object: first a header, then subscriptions and messages with their headers and body, last the end
    with their numbers. `sluiceway store import` takes it back. A file is there when it is complete, never before. What
    can't be read is left out and named; then it ends with 7.

    \b
    Examples:
      sluiceway store export --output backup.jsonl.gz
      sluiceway store export --queue '/queue/orders.>' --output orders.jsonl
      sluiceway store export | jq -r 'select(.line == "message") | .body'
    """
    from sluiceway.store.maintenance.bodies import FolderBodies
    from sluiceway.store.maintenance.opening import open_store

    _check_output(output)
    with open_store(folder) as opened:
        _say_repaired(opened.repaired)
        _export(opened.engine, FolderBodies(opened.directory.large_path), output, patterns)


def _check_output(output: str) -> None:
    """Refuse, in words, what can't become a file."""
    if output != "-" and Path(output).is_dir():
        raise click.BadParameter(f"{output} is a folder: name a file in it", param_hint="--output")
    if output != "-" and not Path(output).parent.is_dir():
        raise click.BadParameter(f"there is no folder {Path(output).parent}: make it first", param_hint="--output")


def _export(engine: Engine, bodies: Bodies, output: str, patterns: tuple[str, ...]) -> None:
    from sluiceway.cli.progress import shown
    from sluiceway.protocols.stomp.header_codec import HeaderCodec
    from sluiceway.queues.names import DestinationNameError, meant_by
    from sluiceway.store.maintenance.export import Export, destination_filter

    _check_output(output)
    try:
        wanted = destination_filter(patterns) if patterns else lambda _name: True
    except DestinationNameError as error:
        raise click.BadParameter(str(error), param_hint="--queue") from None
    with shown("exporting") as tell:
        exporting = Export(
            engine,
            HeaderCodec(),
            bodies=bodies,
            wanted=wanted,
            on_progress=tell,
            on_fault=lambda what: click.echo(f"sluiceway: left out: {what}", err=True),
        )
        try:
            with _written(output) as file:
                file.writelines(exporting.lines())
        except BrokenPipeError:
            # The reader has closed the pipe, as `head` does. Without this Python would complain again when it flushes
            # at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(int(Exit.INCOMPLETE)) from None
        except OSError as error:
            fail(Exit.STORE, f"the export could not be written: {error}")
    if not exporting.messages_count and not exporting.subscriptions_count:
        for pattern in patterns:
            if meant := meant_by(pattern):
                warn(f"--queue {pattern!r} matches nothing: did you mean {meant}?")
    click.echo(
        f"exported {count_in_words(exporting.messages_count, 'message')} and "
        f"{count_in_words(exporting.subscriptions_count, 'durable subscription')}"
        f"{_and_remembered(exporting.producers_count)}",
        err=True,
    )
    if exporting.faults_count:
        fail(
            Exit.FAULTY,
            f"{count_in_words(exporting.faults_count, 'record')} left out or incomplete: see `sluiceway store check`",
        )


def _and_remembered(count: int) -> str:
    """Return how many records of producers and ids there are, in words behind other counts; "": none."""
    return f", and {count_in_words(count, 'record')} of producers" if count else ""


@contextmanager
def _written(output: str) -> Iterator[IO[bytes]]:
    """Open standard output, or a file that appears when all of it is written and synced."""
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            if path.suffix == ".gz":
                # No name and no time in it: the same store gives the same file.
                with (
                    gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed,
                    io.BufferedWriter(cast(io.RawIOBase, packed), _PACKED_BYTES) as lines,
                ):
                    yield lines
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _import_into_database(url: str, shard: int | None, *, file: str, dry_run: bool) -> None:
    """Import into a shard in a database that no broker has."""
    from sluiceway.extras import needs

    with needs("postgresql", 'store.engine = "postgresql"'):
        from sluiceway.store.postgresql import PostgresqlEngine
        from sluiceway.store.postgresql_schema import NoTablesError
    from sluiceway.store.maintenance.importing import Share, import_engine
    from sluiceway.store.memory import MemoryEngine

    engine: Engine
    with ExitStack() as stack:
        try:
            number, shards_count = _one_shard_of(url, shard)
        except NoTablesError:
            number, shards_count = 0, 1
            engine = MemoryEngine() if dry_run else PostgresqlEngine(url, name="sluiceway store")
        else:
            if dry_run:
                engine = stack.enter_context(_snapshot(url, number))
            else:
                engine = PostgresqlEngine(url, shard=number, name="sluiceway store", is_tool=True)
        stack.callback(engine.close)
        place = _place_in("the database" if isinstance(engine, MemoryEngine) else engine.place, number, shards_count)
        share = None if shards_count == 1 else Share(number, shards_count)
        _import(partial(import_engine, engine, share=share), place, file, dry_run=dry_run)


@store.command("import")
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Read all of it and say what would be done.")
@_folder_options(in_database=_import_into_database)
@_of_one_shard
def import_(folder: Path, file: str, dry_run: bool) -> None:
    """Take back what `sluiceway store export` wrote, into a new store or behind what an existing one has.

    FILE may be compressed with gzip; `-` is standard input. A file is read through first: if there is a fault in it,
    nothing is imported. From standard input what comes before the fault is.

    \b
    Examples:
      sluiceway store import backup.jsonl.gz --data new-folder
      sluiceway store import backup.jsonl.gz --dry-run
      ssh other sluiceway store export | sluiceway store import -
    """
    from sluiceway.store.maintenance.importing import import_folder

    _import(partial(import_folder, folder), str(folder), file, dry_run=dry_run)


def _import(take: Callable[..., ImportReport], place: str, file: str, *, dry_run: bool) -> None:
    """Import a file. `take`: `import_folder` or `import_engine`, without the arguments that both have."""
    from sluiceway.cli.progress import Display
    from sluiceway.protocols.stomp.header_codec import HeaderCodec
    from sluiceway.store.maintenance.lines import ExportFormatError

    if Path(file).is_dir():
        fail(Exit.USAGE, f"{file} is a folder: name the file that `sluiceway store export` wrote")
    if file != "-" and not os.access(file, os.R_OK):
        fail(Exit.USAGE, f"{file} can't be read: is it there?")
    name = "standard input" if file == "-" else file
    source = _Source(file)
    passes = 2 if source.size_bytes is not None and not dry_run else 1
    total = source.size_bytes * passes if source.size_bytes is not None else None
    with Display("importing", "bytes" if total is not None else "lines") as display:

        def tell(lines_count: int) -> None:
            display.tell(lines_count if total is None else source.read_bytes, total)

        try:
            report = take(
                source.open,
                HeaderCodec(),
                _complaint,
                again=source.size_bytes is not None,
                dry_run=dry_run,
                on_progress=tell if sys.stderr.isatty() else None,
            )
        except ExportFormatError as error:
            kept = "" if dry_run or source.size_bytes is not None else " The lines before it were imported."
            fail(Exit.FAULTY, f"{name} can't be imported: {error}.{kept}")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            fail(Exit.FAULTY, f"{name} is damaged or was cut off: {error}. Export again, or copy the file again.")
        except OSError as error:
            fail(Exit.STORE, f"{name} could not be imported: {error}")
    _show_import(report, place, dry_run=dry_run)


def _complaint(head: Envelope, body_bytes: int, has_nul: bool) -> str | None:
    """Return the fault of a body under these headers, with which its frames would end at the wrong place."""
    length_bytes = cast("SendHead", head).content_length
    if length_bytes < 0:
        return "the body holds a NUL: add its content-length to the headers" if has_nul else None
    if length_bytes != body_bytes:
        return f"the headers say content-length:{length_bytes}, the body has {body_bytes} bytes: correct the number"
    return None


class _Source:
    """An export to read: a file, any number of times, or standard input, once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: BinaryIO | None = None
        self._before_bytes = 0
        self.size_bytes: int | None = None
        """Size; None: it can be read only once."""
        if name != "-" and Path(name).is_file():
            self.size_bytes = Path(name).stat().st_size

    @property
    def read_bytes(self) -> int:
        """Bytes read so far, in all passes."""
        return self._before_bytes + (self._file.tell() if self._file is not None else 0)

    @contextmanager
    def open(self) -> Iterator[Iterable[bytes]]:
        """Yield the lines from the beginning. Raises OSError."""
        if self._name == "-":
            yield _unpacked(cast(BinaryIO, sys.stdin.buffer))
            return
        with Path(self._name).open("rb") as file:
            self._file = file
            yield _unpacked(file)
            self._before_bytes += file.tell()
            self._file = None


def _unpacked(file: BinaryIO) -> Iterable[bytes]:
    """Return the lines, unpacked if the file is compressed."""
    reader = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
    packed = reader.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
    return gzip.GzipFile(fileobj=reader, mode="rb") if packed else reader


def _show_import(report: ImportReport, place: str, *, dry_run: bool) -> None:
    for queue in report.queues:
        if not queue.messages_count:
            continue  # it has producers or cursors only
        where = ", behind existing messages" if queue.appended else ""
        click.echo(
            f"  {queue.name}, priority {queue.priority}: {count_in_words(queue.messages_count, 'message')}{where}"
        )
    said = f"{count_in_words(report.messages_count, 'message')} and "
    said += count_in_words(report.subscriptions_added_count, "durable subscription")
    said += _and_remembered(report.producers_count)
    click.echo(f"{place}: {'would import' if dry_run else 'imported'} {said}")
    if report.renumbered_count:
        click.echo(
            f"{count_in_words(report.renumbered_count, 'message')} with new message-ids: theirs may have been used"
        )
    if report.subscriptions_there_count:
        click.echo(
            f"{count_in_words(report.subscriptions_there_count, 'durable subscription')} there already: "
            "they get the imported messages"
        )


# -- compact -----------------------------------------------------------------------------------------------------------


@store.command()
@_folder_options(
    instead="the server's autovacuum frees the space of deleted records for new ones, and VACUUM (FULL, ANALYZE) "
    "sluiceway_records gives it back while no broker runs"
)
@_of_each_shard
def compact(folder: Path) -> None:
    """Reclaim the disk space of deleted data.

    LevelDB does so itself over time while a broker works. Rewrites all stored data, so it takes its time and needs free
    space for what is left.

    \b
    Example:
      sluiceway store compact
    """
    from sluiceway.cli.progress import shown
    from sluiceway.store.directory import told_of
    from sluiceway.store.maintenance.compacting import compact as give_back
    from sluiceway.store.maintenance.opening import open_store
    from sluiceway.store.pages import clear

    with open_store(folder) as opened, shown("compacting", "families") as tell:
        _say_repaired(opened.repaired)
        with told_of(folder):
            paged_bytes = clear(opened.directory.paged_path)
        before_bytes, after_bytes = give_back(opened.engine, tell)
    click.echo(f"{folder}: {size_in_words(before_bytes + paged_bytes)} before, {size_in_words(after_bytes)} now")


# -- output ------------------------------------------------------------------------------------------------------------


def _say_repaired(report: object) -> None:
    if report is not None:
        click.echo(f"sluiceway: {report}", err=True)


def _console() -> Console:
    from rich.console import Console

    # A pager or a file has no width to fit.
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
