"""The part of `sluiceway migrate` that moves messages: a run, with its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final

import click

from sluiceway.cli.connecting import in_words
from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.migrate_options import MoveOptions
from sluiceway.cli.progress import shown
from sluiceway.cli.waiting import PATIENCE_SECONDS, say_that_it_waits, watched
from sluiceway.client.address import Address
from sluiceway.client.errors import ClientError, RefusedError
from sluiceway.client.link import Link
from sluiceway.flow.words import count_in_words
from sluiceway.migration.ledger import Ledger, LedgerError
from sluiceway.migration.moving import MoveError, Mover, Progress, counts_left
from sluiceway.migration.translation import Translation, queue_here
from sluiceway.migration.verdicts import Verdict, outcome, table

_BROKERS: Final = {
    "ActiveMQ-Artemis": ", which is another program: its messages are not moved",
    "RabbitMQ": ": use `sluiceway migrate rabbitmq`",
    "ActiveMQ": ": use `sluiceway migrate activemq`",
}
"""Beginnings of what brokers say that they are, with what to do when it is not the one that was meant."""


class Move:
    """One run."""

    def __init__(
        self,
        translation: Translation,
        source: Address,
        target: Address,
        queues: Sequence[str],
        options: MoveOptions,
        left: Callable[[], Counter[str]] | None = None,
    ) -> None:
        """`queues`: names there. `left`: tells how many messages each queue there has; None: they are looked at, where
        the other broker can do that.
        """
        self._translation = translation
        self._source = source
        self._target = target
        self._queues = queues
        self._options = options
        self._left = left
        self._troubles: dict[str, str] = {}
        """Reasons of queues that were not finished, by name there."""
        self._uncountable: set[str] = set()
        """Queues that the source does not let this login read, by name there."""
        self._code = Exit.OK

    def dry_run(self) -> None:
        """Log in at both, and print what is there."""

        with Link(self._target):
            pass
        with self._opened_source():
            pass
        counts = self._counts_left()
        if counts is None:
            click.echo(f"{', '.join(self._queues)}: what is there is not known before it is moved")
        else:
            for queue in sorted(counts.keys() | set(self._plain_queues())):
                here = self._name_here(queue)
                to = "which can't be moved" if here is None else f"to {here}"
                click.echo(f"{queue}: {count_in_words(counts[queue], 'message')}, {to}")
        click.echo(f"nothing was moved; {self._source} and {self._target} have accepted the logins")
        for words in self._troubles.values():
            warn(words)

    def run(self) -> None:
        """Move the messages, and print the report. Ends the command with a code unless all is well."""

        source = f"{self._source} {self._source.virtual_host or ''}".strip()
        try:
            with Ledger(self._options.ledger, source, str(self._target)) as ledger:
                self._run(ledger)
        except LedgerError as error:
            fail(Exit.USAGE, str(error))
        if self._code is not Exit.OK:
            raise click.exceptions.Exit(int(self._code))

    def _run(self, ledger: Ledger) -> None:

        if ledger.is_continued:
            click.echo(f"continuing with {ledger.path}", err=True)
        progress = Progress()
        target = Link(self._target)
        target.open()
        with _closing(target, lambda: self._code is Exit.OK):
            waits = lambda: (progress.confirmed_count, progress.sent_count > progress.confirmed_count)  # noqa: E731
            say = partial(say_that_it_waits, self._target)
            with ExitStack() as stack:
                tell = stack.enter_context(shown("moving"))
                stack.enter_context(watched(waits, PATIENCE_SECONDS, say))
                self._move_all(target, ledger, progress, tell)
        if progress.in_memory:
            warn(f"{self._target} keeps persistent messages in memory only: without a store a restart loses them")
        self._report(ledger)

    def _move_all(
        self, target: Link, ledger: Ledger, progress: Progress, tell: Callable[[int, int | None], None] | None
    ) -> None:

        options = self._options
        for place, queue in enumerate(self._queues):
            try:
                with self._opened_source() as source:
                    Mover(
                        source,
                        target,
                        self._translation,
                        ledger,
                        credit_count=options.credit_count,
                        idle_seconds=options.idle_seconds,
                        persistent=options.persistent,
                        progress=progress,
                        tell=lambda count: None if tell is None else tell(count, None),
                    ).move(queue)
            except MoveError as error:
                self._note(queue, error)
                if error.at_source and self._code is Exit.REFUSED:
                    continue  # this queue only
                self._stopped(self._queues[place + 1 :])
                return
            except KeyboardInterrupt:
                self._troubles[queue] = "interrupted: run the command again"
                self._code = Exit.INCOMPLETE
                self._stopped(self._queues[place + 1 :])
                return

    def _note(self, queue: str, error: MoveError) -> None:

        broker = f"{self._translation.broker} at {self._source}" if error.at_source else f"{self._target}"
        if isinstance(error.cause, RefusedError):
            self._code = Exit.REFUSED
            if error.at_source:
                self._uncountable.add(queue)
            words = " ".join(filter(None, (error.cause.words, error.cause.detail)))
            about = f" a {error.about}" if error.about else ""
            self._troubles[queue] = (
                f"{broker} refuses{about}: {words.rstrip('.')}{_remedy(words) if error.at_source else ''}"
            )
        elif isinstance(error.cause, ValueError):
            self._code = Exit.FAULTY
            self._troubles[queue] = str(error.cause)
        else:
            self._code = Exit.CONNECT
            words = (
                error.cause.short if error.at_source and isinstance(error.cause, ClientError) else in_words(error.cause)
            )
            self._troubles[queue] = f"{words}: when it is back, run the command again to continue"

    def _stopped(self, rest: Sequence[str]) -> None:
        for queue in rest:
            self._troubles[queue] = "not begun"

    def _report(self, ledger: Ledger) -> None:

        try:
            counts = None if self._code is Exit.CONNECT else self._counts_left()
        except MoveError as error:
            warn(f"what is left could not be counted: {error}")
            counts = None
        names = {self._name_here(queue) or queue: queue for queue in self._plain_queues()}
        names |= {here: here.removeprefix("/queue/") for here in ledger.tallies}
        names |= {self._name_here(queue) or queue: queue for queue in counts or ()}
        everywhere = self._troubles.get(self._translation.wildcard or "", "")
        outcomes = [
            outcome(
                here,
                ledger.tally(here),
                left_count=None if counts is None or queue in self._uncountable else counts[queue],
                open_count=ledger.open_count(here),
                trouble=self._troubles.get(queue, everywhere),
                idle_seconds=self._options.idle_seconds,
            )
            for here, queue in names.items()
        ]
        for line in table(outcomes):
            click.echo(line)
        if not outcomes and everywhere:
            click.echo(f"sluiceway: {everywhere}", err=True)
        if self._code is Exit.OK and any(each.verdict is Verdict.INCOMPLETE for each in outcomes):
            self._code = Exit.INCOMPLETE

    # ------------------------------------------------------------------ the source

    def _plain_queues(self) -> list[str]:
        return [queue for queue in self._queues if queue != self._translation.wildcard]

    def _name_here(self, queue: str) -> str | None:

        try:
            return queue_here(queue)
        except ValueError as error:
            self._troubles.setdefault(queue, str(error))
            return None

    @contextmanager
    def _opened_source(self) -> Iterator[Link]:
        """Yield an open link. Ends the command if the login is refused. Raises MoveError."""
        link = Link(self._source)
        try:
            link.open()
        except RefusedError as error:
            words = " ".join(filter(None, (error.words, error.detail)))
            fail(
                Exit.REFUSED,
                f"{self._translation.broker} at {self._source} refuses the login: {words}\n"
                "It comes from SOURCE, stomp://LOGIN:PASSCODE@HOST:PORT, and SLUICEWAY_SOURCE_PASSCODE.",
            )
        except ClientError as error:
            raise MoveError(True, error) from error
        other = next((name for name in _BROKERS if link.server.startswith(name)), self._translation.broker)
        if other != self._translation.broker:
            link.cut()
            fail(Exit.USAGE, f"{self._source} is {link.server}, not {self._translation.broker}{_BROKERS[other]}")
        with _closing(link):
            yield link

    def _counts_left(self) -> Counter[str] | None:
        """Return how many messages each queue there has, by name; None: it is not known. Raises MoveError."""

        if self._left is not None:
            return self._left()
        if not self._translation.can_browse:
            return None
        counts: Counter[str] = Counter()
        for queue in self._queues:
            if queue in self._uncountable:
                continue
            with self._opened_source() as source:
                found = counts_left(source, self._translation, queue, self._options.idle_seconds)
            if found is None:
                return None
            counts += found if queue == self._translation.wildcard else Counter({queue: found.total()})
        return counts


@contextmanager
def _closing(link: Link, is_well: Callable[[], bool] = lambda: True) -> Iterator[Link]:
    """Say goodbye at the end, unless an error was raised or all is not well: a broker that reads nothing would not hear
    it.
    """
    try:
        yield link
        if is_well():
            with suppress(ClientError):
                link.close()
    finally:
        link.cut()


def _remedy(words: str) -> str:
    lowered = words.lower()
    if "exclusive" in lowered or "locked" in lowered:
        return ". Another connection has this queue for itself: end that consumer, then run the command again"
    if "not_found" in lowered or "no queue" in lowered:
        return ". Look for its name, and at --vhost"
    if "not authorized" in lowered or "access_refused" in lowered or "access refused" in lowered:
        return ". The login needs the permission to read it"
    return ""
