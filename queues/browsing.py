"""Browsing the messages of a queue without consuming them.

A browser shows its viewer the elements that were live when it was made, those in consumers' hands too, in order: the
partition of the highest priority first, within one by sequence. Elements that leave the queue before the browser
reaches them are passed over, and so are expired ones; later elements are not shown. Delayed messages are in the queue,
and are shown.

Consumers are not affected: a browser has no cursor, and nothing is marked, moved or kept alive for it. It works in
bounded steps in a dispatch context of its own, below that of ordinary queues, and only while its viewer has room. It
keeps a position and looks the queue up again at each step, so changes of the queue in between do no harm.

Blocks outside are read from the store for the viewer alone: the block is not paged in. The browser holds one such block
at a time, until all of it is shown, and is charged for it.

Bound: one block outside (1,024 elements, about 1 MiB).

Source: DESIGN section 9 (`browser:true`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Protocol

from ..flow import Account, Flow, FlowResource, SizeLimiter, SourceController
from ..flow.kinds import ResourceKind
from .blocks import QueueInvariantError
from .cursored import BLOCK_BITS
from .environment import QueueEnvironment
from .message import Message, size_of
from .paging import BLOCK_BYTES_MAX
from .queue import MessageQueue
from .selectors.selector import Selection
from .slices import Slice, fit

BROWSE_PRIORITY: Final = 3
"""Priority of the dispatch context: browsing comes after consuming."""

STEP_COST: Final = 32
"""Cost of one look at a block, whatever it finds, in units of a dispatch's budget: a gap takes as long as that many
messages.
"""


class Viewer(Protocol):
    """Recipient of browsed messages. All calls are synchronous."""

    @property
    def label(self) -> str:
        """Name of the viewer, for people."""

    def credit(self) -> tuple[int, int]:
        """Messages and wire bytes that may be shown now. Either of them 0: none, `await_credit` is called then."""

    def await_credit(self, source: SourceController) -> None:
        """Block this source until there is credit."""

    def show(self, part: Slice, source: SourceController) -> int:
        """Show elements; returns how many were shown, at least one: the others are offered again. May block
        `source`.
        """

    def shown_all(self) -> None:
        """Note that the last message was shown. The browser is closed."""


class QueueBrowser(FlowResource):
    """Browser of one queue, from its beginning to the end that it had. Made by `DestinationRegistry.browse`."""

    def __init__(
        self,
        name: str,
        partitions: Iterable[MessageQueue],
        viewer: Viewer,
        environment: QueueEnvironment,
        selection: Selection | None = None,
        *,
        places: Iterable[tuple[MessageQueue, int]] = (),
    ) -> None:
        """`partitions` of the destination `name`, in the order in which they are shown; `selection`: selection of
        messages (None: all). `places`: queues in place of partitions, each with the sequence behind what is shown.
        Begins with the next dispatch.
        """
        self._selection = selection
        super().__init__(f"{name} for {viewer.label}", ResourceKind.BROWSER, environment.manager)
        self._viewer = viewer
        self._now_ms = environment.now_ms
        self._ahead: deque[tuple[MessageQueue, int]] = deque(
            (queue, queue.elements.next_sequence) for queue in partitions if not queue.closed
        )
        self._ahead.extend(places)
        """Partitions that are to be shown, each with the sequence where it ended."""
        self._position = 0
        """Position in the first of the queues."""
        self._awaited: int | None = None
        """The block that the store has been asked for."""
        self._hand: deque[tuple[int, Message]] = deque()
        """Messages of a block outside that are still to be shown."""
        self._hand_end = 0
        """The sequence behind that block."""
        self._hand_charge = 0, 0
        self.closed = False
        self.shown_count = 0
        self.source = SourceController(
            self, Flow(f"{name} to {viewer.label}"), on_resume=lambda _sink: self._resumed(), clock=environment.clock
        )
        self._read = Account(
            self,
            Flow(f"{name} from disk"),
            SizeLimiter(BLOCK_BYTES_MAX, clock=environment.clock),
            clock=environment.clock,
        )
        self.context = environment.scheduling.register(self._dispatch, f"browser of {name}", BROWSE_PRIORITY)
        self.open()
        self.context.request_dispatch()

    def close(self) -> None:
        """Look no further. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self.context.close()
            self._ahead.clear()
            self._drop_hand()
            super().close()

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"shown": self.shown_count}
        if self._awaited is not None:
            facts["reads the disk"] = True
        return facts

    # ------------------------------------------------------------------ dispatch

    def _resumed(self) -> bool:
        """Request a dispatch, and hold the turn until the credit is used."""
        self.context.request_dispatch()
        return True

    def _dispatch(self, budget: int) -> bool:
        more = self._go_on(budget)
        self.source.end_turn()
        return more

    def _go_on(self, budget: int) -> bool:
        """Show what may be shown now; True when there is more to do at once."""
        viewer = self._viewer
        while not self.closed and not self.source.blocked and self._awaited is None:
            if budget <= 0:
                return True
            count_max, bytes_max = viewer.credit()
            if count_max <= 0 or bytes_max <= 0:
                viewer.await_credit(self.source)
                if not self.source.blocked:
                    raise QueueInvariantError(f"{viewer.label} has no credit for {self.name} and does not block it")
            elif not self._ahead:
                self.close()
                viewer.shown_all()
            elif self._selection is None:
                budget -= max(STEP_COST, self._step(min(budget, count_max), bytes_max))
            else:
                selector = self._selection.selector
                before_units = selector.spent_units
                shown = self._step(min(budget, count_max, selector.looks_max), bytes_max)
                budget -= max(STEP_COST, shown) + selector.cost_since(before_units)
        return False

    def _step(self, count_max: int, bytes_max: int) -> int:
        """Process the next elements: show them, pass them over, or ask the store for them. Returns how many
        were shown.
        """
        queue, end = self._ahead[0]
        if not self._hand:
            self._position = queue.elements.first_live(self._position)
        if queue.closed or self._position >= end:
            self._ahead.popleft()
            self._position = 0
            self._drop_hand()
            return 0
        if self._hand:
            found, position = self._in_hand(queue, count_max)
        else:
            index = self._position >> BLOCK_BITS
            block = queue.elements.block(index)
            assert block is not None, "something in it is alive"
            if block.outside is not None:
                self._ask(queue, index)
                return 0
            found, position = self._in_memory(queue, end, count_max, bytes_max)
        now_ms = self._now_ms()
        found = [(sequence, message) for sequence, message in found if not 0 < message.expires_at_ms <= now_ms]
        if self._selection is not None:
            takes, looked_count = self._selection.selector.takes, len(found)
            found = [(sequence, message) for sequence, message in found if takes(message)]
            self._selection.passed_count += looked_count - len(found)
        shown = 0
        if found:
            count, wire_bytes = fit([message.wire for _sequence, message in found], bytes_max)
            part = Slice(
                [message for _sequence, message in found[:count]], [s for s, _message in found[:count]], wire_bytes
            )
            shown = self._viewer.show(part, self.source)
            self.shown_count += shown
            if shown < len(found):
                position = found[shown][0]
        if not self.closed:
            self._move_to(position)
        return shown

    def _in_memory(
        self, queue: MessageQueue, end: int, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[int, Message]], int]:
        """Return the elements alive from the position on, of one block in memory, and the position behind them."""
        block = queue.elements.block(self._position >> BLOCK_BITS)
        assert block is not None
        place = self._position - block.base
        first = block.elements[place]
        assert first is not None, "it was looked for"
        # As in CursoredQueue.read: a viewer with little room must not pay for the whole block each time.
        look_count = min(count_max, bytes_max // (len(first.wire) or 1) + 1, end - self._position)
        part = block.elements[place : place + look_count]
        found = [(sequence, message) for sequence, message in enumerate(part, self._position) if message is not None]
        return found, self._position + len(part)

    def _in_hand(self, queue: MessageQueue, count_max: int) -> tuple[list[tuple[int, Message]], int]:
        """Likewise, of the block that the store has given."""
        part = list(islice(self._hand, count_max))
        is_alive = queue.elements.is_alive
        return [pair for pair in part if is_alive(pair[0])], part[-1][0] + 1

    def _move_to(self, position: int) -> None:
        self._position = position
        hand = self._hand
        if hand:
            while hand and hand[0][0] < position:
                hand.popleft()
            if not hand:
                self._position = self._hand_end
                self._drop_hand()

    # ------------------------------------------------------------------ outside

    def _ask(self, queue: MessageQueue, index: int) -> None:
        storage = queue.storage
        assert storage is not None, "where else should it be"
        self._awaited = index
        storage.load(index, self._arrived)

    def _arrived(self, index: int, by_sequence: dict[int, Message]) -> None:
        """Take the messages of a block that the store has read. Missing ones are passed over: they are reported when
        consumers reach them.
        """
        self._awaited = None
        if self.closed:
            return
        queue, end = self._ahead[0]
        is_alive = queue.elements.is_alive
        block_end = min(end, (index + 1) << BLOCK_BITS)
        self._hand_end = block_end
        self._hand.extend(
            (sequence, by_sequence[sequence])
            for sequence in sorted(by_sequence)
            if self._position <= sequence < block_end and is_alive(sequence)
        )
        if self._hand:
            self._hand_charge = len(self._hand), size_of(message for _sequence, message in self._hand)
            self._read.charge(*self._hand_charge, None)
        else:
            self._position = block_end
        self.context.request_dispatch()

    def _drop_hand(self) -> None:
        count, size_bytes = self._hand_charge
        self._hand.clear()
        if count:
            self._hand_charge = 0, 0
            self._read.release(count, size_bytes)
