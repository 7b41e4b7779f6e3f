"""Client's side of proxy sessions: what a client does with destinations that are at home at other hubs.

For each client and each hub that owns destinations of this client there is one flow (`Far`), which ends in an ordinary
session there. `Relay.take` is in place of `Session.take_here` where there is a cluster: each event goes to this hub or
over a flow, as bytes. SENDs go by their destination, UNSUBSCRIBE by its id, ACK and NACK by the prefix of their ack
header (1.2) or by the beginning of their message-id, a transaction by the first destination that a frame of it names.
What comes back is appended to the output of the client as it lies; RECEIPTs and ERRORs are looked at.

Permissions. The hub of the client checks its login and its rates. Whether it may use a destination is asked where the
destination lives, since only there is known whether it would have to be made.

Lost flows. SENDs stay here until the other hub has done them: those without a receipt until it says so, others
until their RECEIPT is back. When a flow is lost they are sent again, marked with `possible-duplicate:true` where
they may have arrived, and subscriptions are made again; if the destination has no home now, both wait (*homeless*),
and reading stops when SENDs take more than the stash may. ACKs of deliveries of a lost flow are forgotten, for
those messages come again, marked. One with a receipt ends the connection with an ERROR, for the RECEIPT would lie;
so do a transaction and a large body that were under way.

Topics (`Topics`). A SUBSCRIBE that is not durable stays at this hub. A SEND to a topic goes to this hub if that has
subscribers, to the home of the topic if it may have durable subscriptions, where it is kept and sent again as above,
and as a copy (copies.py) to each other hub with subscribers. A transaction is carried out at the home of its topics;
copies of its SENDs leave behind the RECEIPT of its COMMIT, and what the client sends to these topics meanwhile behind
them.

Bounds: SENDs and other bytes under way are charged to an account of `stash_bytes_max`; what comes back to the output of
the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from ...flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from ...flow.bounds import UNBOUNDED
from ...flow.kinds import ResourceKind
from ...flow.latch import Latch
from ...queues.durables import DurableNameError
from ...queues.logs.table import PREFIX as LOG_PREFIX
from ...queues.names import DestinationName, DestinationNameError, parse_composite
from ...queues.shard_hash import shard_of_number
from ..framing import PLAIN, Framing
from ..link.records import WORDS_BYTES_MAX, OpeningTooLargeError
from ..outbound import Outbound
from ..reading import ReadGate, Reason
from .authorization import Identity
from .browsing import wants_to_browse
from .copies import CopyLine, CopyRun, Missed
from .delivery import SessionTotals
from .errors import ProtocolError
from .escaping import Version, escape_value, unescape
from .far import ENTRY_BYTES, NUL_LF, Far, Kept
from .frames import AckRun, Event, Frame, LargeSendEnd, LargeSendPiece, LargeSendStart, PassedRun, SendRun
from .head import SendHead
from .hub import Hub
from .lanes import Lanes, ParkedRun
from .limits import StompLimits
from .placement import Elsewhere, FlowEnd
from .replies import MEMORY, Leg, Owed, Replies
from .routing import ADMIN_PREFIX, CREDIT_REQUEST, about_send
from .subscribe_headers import ACK_AUTO, ORDERED_ONLY, credit_change_of, durable_name_of
from .temporary import LOCAL_PREFIXES, TemporaryDestinations

ROUTES_MAX: Final = 1024
"""Destinations of one client whose homes are remembered."""
MARK: Final = b"possible-duplicate:true\n"
"""Header of a SEND that is sent again, and may have arrived before."""

_ESCAPED: Final = b"\\\r\n:"
"""Bytes that are escaped in a header value."""
_RECEIPT: Final = b"RECEIPT\nreceipt-id:"
_ACK_END: Final = b"\n\n\0\n"
TOKEN_LENGTH: Final = 8
"""Length of the first part of message-ids; keys of subscriptions are shorter."""
_LOG_TOKEN: Final = b"log."
_HERE: Final = ""
_NOWHERE: Final = "?"
"""Beginning of the name in place of a hub: none has the destination now."""
_TOPIC: Final = "topic"
Legs = tuple[tuple[str, str], ...]
"""Hub (empty: this one) and destinations there, of one destination header."""
Route = tuple[Legs | None, Legs]
"""Hubs that confirm SENDs (None: this one alone), and those that get a copy."""


class _Away(Exception):
    """No hub has the destination now, or none can be reached."""


@attrs.define(eq=False)
class _Sub:
    """One live subscription, and the hubs that have a part of it."""

    frame: Frame
    hubs: set[str]
    covers_all: bool


@attrs.define(eq=False)
class _Transaction:
    """One open transaction. `hub`: the one to which it belongs; None: no frame of it has named a destination."""

    begin: Frame
    hub: str | None = None
    is_lost: bool = False
    copies: list[Kept] = attrs.field(factory=list)
    """SENDs to topics with subscribers at other hubs."""


class _Underway(FlowResource):
    """Bytes of one client on their way to other hubs, on the flow map."""

    passes_through = False

    def __init__(self, label: str, limits: StompLimits, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__(f"to other hubs from {label}", ResourceKind.LINK, manager)
        self.account = Account(self, Flow(self.name), SizeLimiter(limits.stash_bytes_max, clock=clock), clock=clock)
        self.open()


class _Copies(FlowResource):
    """Copies of one client's SENDs on their way to the subscribers of other hubs, on the flow map."""

    passes_through = False

    def __init__(self, label: str, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__(f"copies to other hubs from {label}", ResourceKind.LINK, manager)
        self.account = Account(self, Flow(self.name), SizeLimiter(UNBOUNDED, UNBOUNDED, clock=clock), clock=clock)
        self.open()


class _Then(Leg):
    """A receipt of the relay's own, at this hub."""

    def __init__(self, replies: Replies, receipt_id: str | None, callback: Callable[[], None]) -> None:
        """`receipt_id`: that of the client."""
        super().__init__(replies, Owed([] if receipt_id is None else [receipt_id], 1), "")
        self._callback = callback

    def done(self, durability: str, indexes: Iterable[tuple[str, tuple[int, int]]] = ()) -> None:
        self._callback()


class Relay:
    """Use of other hubs by one client."""

    def __init__(
        self,
        hub: Hub,
        elsewhere: Elsewhere,
        limits: StompLimits,
        outbound: Outbound,
        temporary: TemporaryDestinations,
        replies: Replies,
        lanes: Lanes,
        reading: ReadGate,
        totals: SessionTotals,
        *,
        take_here: Callable[[Event], None],
        flush_here: Callable[[], None],
        fail: Callable[[ProtocolError], None],
        pass_on_error: Callable[[bytes], None],
        unsettled_here: Callable[[], int],
        is_live_here: Callable[[str], bool],
        give_back: Callable[[str], None],
        owned_client_id: Callable[[], str],
        opening: Callable[[], Mapping[str, object]],
    ) -> None:
        """Make a relay. `take_here`: let an event take effect at this hub; `flush_here`: publish what that has put off,
        as at the end of a read; `pass_on_error`: end the connection with an ERROR frame of another hub;
        `is_live_here`: whether a local subscription has this id; `give_back`: end it without the client; `opening`:
        facts about the client for another hub.
        """
        self._hub = hub
        self._elsewhere = elsewhere
        self._limits = limits
        self._outbound = outbound
        self._temporary = temporary
        self._replies = replies
        self._lanes = lanes
        self._totals = totals
        self._take_here = take_here
        self._flush_here = flush_here
        self._fail = fail
        self._pass_on_error = pass_on_error
        self._unsettled_here = unsettled_here
        self._is_live_here = is_live_here
        self._give_back = give_back
        self._subs_here: dict[str, Frame] = {}
        """SUBSCRIBEs to destinations of this hub alone, without their receipts."""
        self._owned_client_id = owned_client_id
        self._opening = opening
        self._hold = reading.hold(
            Reason.DESTINATIONS, "the hubs that have its destinations", is_passable=self._may_read_on
        )
        self._source = self._hold.source(lanes, Flow("to other hubs"), clock=hub.clock)
        self._underway: _Underway | None = None
        self._fars: dict[str, Far] = {}
        self._last_serial = 0
        self._routes: dict[str, Legs | None] = {}
        """Homes of destinations; None: this hub alone."""
        self._send_routes: dict[str, Route] = {}
        self._topics = elsewhere.topics
        self._heard: dict[str, list[str]] = {}
        """Topics and patterns of each subscription that this hub has told the others."""
        self._was_on = self._topics.is_on
        self._missed: dict[str, Missed] = {}
        self._copies: _Copies | None = None
        self._committing: dict[str, int] = {}
        """Destinations of COMMITs under way whose copies are still here."""
        self._copies_held_bytes = 0
        """Bytes of SENDs of open transactions, for their copies."""
        self._generation = elsewhere.placement.generation
        self._subs: dict[str, _Sub] = {}
        self._orphans: list[tuple[str, Frame, Callable[[], None] | None]] = []
        """SUBSCRIBEs without a home, and what is to be called when they are made."""
        self._homeless: deque[Kept] = deque()
        self._homeless_names: set[str] = set()
        self._behind: list[tuple[str, Callable[[], None]]] = []
        """Hubs, and what is to be called when they have read the SENDs that wait for them."""
        self._transactions: dict[str, _Transaction] = {}
        self._awaited: dict[bytes, Callable[[], None]] = {}
        """RECEIPTs that the relay waits for itself."""
        self.own_receipt = f"sluiceway-relay-{hub.new_session_id()}-"
        """See `FarOwner.own_receipt`."""
        self._own_receipt_bytes = self.own_receipt.encode()
        self._last_receipt = 0
        self._large: dict[Far, bool] = {}
        """Flows over which a large SEND is under way, and whether the hub confirms it."""
        self._large_is_here = False
        self._is_large_apart = False
        """Whether a large SEND is under way that goes to other hubs."""
        self._leaving: Frame | None = None
        self._is_watching = False
        self._is_closed = False
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "SUBSCRIBE": self._subscribe,
            "UNSUBSCRIBE": self._unsubscribe,
            "ACK": self._ack,
            "NACK": self._ack,
            "BEGIN": self._begin,
            "COMMIT": self._finish,
            "ABORT": self._finish,
            "DISCONNECT": self._disconnect,
        }

    @property
    def version(self) -> Version:
        """Version that the client speaks."""
        return self._replies.version

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Do `FarOwner.at_turn_end`."""
        self._hub.at_turn_end(callback)

    # ------------------------------------------------------------------ what the client says

    def take(self, event: Event) -> None:
        """Let an event take effect, at its hub. Raises ProtocolError."""
        if isinstance(event, SendRun):
            self._send(event)
        elif isinstance(event, PassedRun):
            self._pass(event)
        elif isinstance(event, AckRun):
            self._ack_run(event)
        elif isinstance(event, Frame):
            try:
                self._handlers[event.command](event)
            except ProtocolError as error:
                error.identify(event.command, event.headers)
                raise
        elif isinstance(event, LargeSendStart):
            self._begin_large(event)
        elif self._is_large_apart and isinstance(event, LargeSendPiece | LargeSendEnd):
            self._go_on_large(event)
        else:
            self._take_here(event)

    def _legs_of(self, destination: str) -> Legs | None:
        """Return where a destination header is at home; None: at this hub alone. Also names that are no destinations go
        here, where their ERROR is made.
        """
        self._check_generation()
        try:
            return self._routes[destination]
        except KeyError:
            pass
        legs = self._find_legs(destination)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[destination] = legs
        return legs

    def _find_legs(self, destination: str) -> Legs | None:
        if destination.startswith(ADMIN_PREFIX):
            return None
        try:
            addresses = parse_composite(destination)
        except DestinationNameError:
            return None
        names: dict[str, list[str]] = {}
        for address in addresses:
            self._add_homes(address, names)
        return _legs_with(names)

    def _add_homes(self, address: DestinationName, names: dict[str, list[str]]) -> None:
        """Add the hub at which a destination is at home, for a wildcard all hubs."""
        if address.temporary_local:
            names.setdefault(_HERE, []).append(address.canonical)
        elif address.wildcard:
            for hub in (_HERE, *self._elsewhere.placement.others()):
                names.setdefault(hub, []).append(address.canonical)
        else:
            home = self._elsewhere.placement.home_of(address.canonical)
            names.setdefault(f"{_NOWHERE}{home.hub}" if home.why_not else home.hub, []).append(address.canonical)

    def _check_generation(self) -> None:
        generation = self._elsewhere.placement.generation
        if generation != self._generation:
            self._generation = generation
            self._forget_routes()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._send_routes.clear()

    # ------------------------------------------------------------------ topics

    def _route_of(self, destination: str) -> Route:
        """Return where SENDs to a destination header go."""
        if _TOPIC not in destination or not self._topics.is_on:
            return self._legs_of(destination), ()
        self._check_generation()
        try:
            return self._send_routes[destination]
        except KeyError:
            pass
        route = self._find_route(destination)
        if len(self._send_routes) >= ROUTES_MAX:
            self._send_routes.clear()
        self._send_routes[destination] = route
        return route

    def _find_route(self, destination: str) -> Route:
        try:
            addresses = parse_composite(destination)
        except DestinationNameError:
            return None, ()
        if any(address.wildcard for address in addresses):
            return None, ()  # its ERROR is made here
        confirming: dict[str, list[str]] = {}
        copied: dict[str, list[str]] = {}
        for address in addresses:
            if self._topics.goes_direct(address):
                self._add_hearers(address.canonical, confirming, copied)
            else:
                self._add_homes(address, confirming)
        return _legs_with(confirming), tuple((hub, ",".join(of_hub)) for hub, of_hub in copied.items())

    def _add_hearers(self, name: str, confirming: dict[str, list[str]], copied: dict[str, list[str]]) -> None:
        """Add the hubs that are to get messages of a topic. One that nobody is to get is dropped at this hub."""
        topics = self._topics
        home = self._elsewhere.placement.home_of(name)
        keeper = _HERE
        if (home.hub or home.why_not) and topics.may_be_kept(home.hub, name):
            keeper = f"{_NOWHERE}{home.hub}" if home.why_not else home.hub
            confirming.setdefault(keeper, []).append(name)
        hearers = [hub for hub in topics.hubs_of(name) if hub != keeper]
        for hub in hearers:
            copied.setdefault(hub, []).append(name)
        if topics.is_heard_here(name) or (not hearers and keeper == _HERE):
            confirming.setdefault(_HERE if topics.is_usable(name) else _NOWHERE, []).append(name)

    def goes_elsewhere(self, destination: str) -> bool:
        """Return whether SENDs to a destination header go to other hubs, too."""
        return self._route_of(destination) != (None, ())

    def copy_line(self, hub: str, flow: FlowEnd) -> CopyLine:
        """Do `FarOwner.copy_line`."""
        return CopyLine(hub, flow, self._topics, self._missed_of(hub), self._charge_copies)

    def _missed_of(self, hub: str) -> Missed:
        missed = self._missed.get(hub)
        if missed is None:
            missed = self._missed[hub] = Missed()
        return missed

    def _charge_copies(self, size_bytes: int) -> None:
        if self._is_closed:
            return
        if self._copies is None:
            self._copies = _Copies(self._lanes.name, self._hub.manager, self._hub.clock)
        if size_bytes > 0:
            self._copies.account.charge(0, size_bytes, None)
        elif size_bytes:
            self._copies.account.release(0, -size_bytes)

    def _send_copies(self, legs: Legs, kept: Kept, *, is_begun: bool) -> None:
        """Send SENDs to hubs that give them to their own subscribers. `is_begun`: a hub has them that is not among
        these, or gets them.
        """
        is_composite = "," in kept.head.destination
        run: CopyRun | None = None
        for hub, names in legs:
            try:
                far = self._far(hub)
            except _Away:
                self._missed_of(hub).add(names, len(kept.wires))
                self._topics.missed(hub, len(kept.wires))
                continue
            if run is None or is_composite:
                if run is not None:
                    self._hold_for(run)
                wires = kept.wires
                if is_composite:
                    wires = _rewritten(wires, kept.head, kept.head.with_headers({"destination": names}))
                run = CopyRun(b"SEND\n" + b"SEND\n".join(wires), len(wires), is_begun)
            far.copies.send(names, run)
        if run is not None:
            self._hold_for(run)

    def _hold_for(self, run: CopyRun) -> None:
        """Charge the client for a copy that no hub has begun to get."""
        if not run.is_begun:
            self.charge(len(run.data))
            run.on_begin = partial(self.release, len(run.data))

    def _far(self, hub: str) -> Far:
        """Return the flow to a hub, opened if need be. Raises _Away, and ProtocolError for a client of which too much
        would have to be told.
        """
        far = self._fars.get(hub)
        if far is not None:
            return far
        if not hub.startswith("?"):
            self._last_serial += 1
            far = Far(self, hub, self._last_serial, self._outbound)
            try:
                is_open = far.open(self._elsewhere, self._opening())
            except OpeningTooLargeError as error:
                raise ProtocolError(
                    "identity-too-large",
                    f"client-id, user and groups of this connection take {error.size_bytes} bytes on the way to hub "
                    f"{hub!r}: {WORDS_BYTES_MAX} are allowed",
                    "Connect with a shorter client-id, or as a user of fewer groups.",
                ) from None
            if is_open:
                self._fars[hub] = far
                return far
        self._watch()
        raise _Away

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._elsewhere.watch(self.look)

    # ------------------------------------------------------------------ SEND

    def _send(self, run: SendRun) -> None:
        head = run.head
        if head.transaction is not None:
            self._send_in_transaction(run)
            return
        if head.destination == CREDIT_REQUEST:
            self._set_credit(run)
            return
        legs, copied = self._route_of(head.destination)
        if legs is None and not copied and not self._committing:
            self._take_here(run)
            return
        if _is_pattern(head.destination):
            self._take_here(run)  # its ERROR is made here
            return
        self._totals.messages_in_count += len(run.wires)
        kept = Kept(self._with_global_reply_to(head, run.receipts), run.wires, run.receipts, 0)
        if kept.head is not head:
            kept.wires = _rewritten(run.wires, head, kept.head)
        if head.destination in self._homeless_names or head.destination in self._committing:
            self._shelter(kept)
            return
        try:
            self._send_on(legs, copied, kept)
        except _Away:
            self._shelter(kept)

    def _send_on(self, legs: Legs | None, copied: Legs, kept: Kept) -> None:
        """Send what is kept to all hubs that are to have it. Raises _Away with nothing sent."""
        if legs is None:
            self._take_counted(kept.head, kept.wires, kept.receipts)
        elif legs:
            self._send_to(legs, kept)
        else:
            self._replies.receipts(kept.receipts)
        if copied:
            self._send_copies(copied, kept, is_begun=legs != ())

    def may_pass(self, head: SendHead) -> bool:
        """Return whether SENDs with this head go to one other hub as they lie, as far as is known now."""
        if head.transaction is not None or (head.reply_to is not None and head.reply_to.startswith(LOCAL_PREFIXES)):
            return False
        legs, copied = self._route_of(head.destination)
        return legs is not None and len(legs) == 1 and legs[0][0] != _HERE and not copied

    def _pass(self, run: PassedRun) -> None:
        head = run.head
        waits = head.destination in self._homeless_names or head.destination in self._committing
        if self.may_pass(head) and not waits:
            legs, _copied = self._route_of(head.destination)
            assert legs is not None, "it may pass"
            try:
                far = self._far(legs[0][0])
            except _Away:
                pass
            else:
                self._totals.messages_in_count += run.count
                far.send_passed(run)
                return
        self._send(run.cut())

    def _with_global_reply_to(self, head: SendHead, receipts: Sequence[str] | None) -> SendHead:
        if head.reply_to is None or not head.reply_to.startswith(LOCAL_PREFIXES):
            return head
        try:
            return self._temporary.with_global_reply_to(head)
        except DestinationNameError as error:
            refusal = ProtocolError("bad-destination", str(error))
            named = {"destination": head.destination}
            refusal.identify("SEND", {**named, "receipt": receipts[0]} if receipts else named)
            raise refusal from None

    def _send_to(self, legs: Legs, kept: Kept) -> None:
        """Send what is kept over flows. Raises _Away with nothing sent."""
        if len(legs) == 1:
            hub = legs[0][0]
            if hub == _HERE:
                self._take_counted(kept.head, kept.wires, kept.receipts)
            else:
                self._far(hub).send_run(kept)
            return
        fars = [None if hub == _HERE else self._far(hub) for hub, _name in legs]
        owed = [Owed([receipt_id], len(legs)) for receipt_id in kept.receipts or ()]
        parts = sorted(zip(fars, legs, strict=True), key=lambda part: part[0] is not None)
        for far, (_hub, name) in parts:  # this hub first: what it refuses goes nowhere
            own = kept.head.with_headers({"destination": name})
            wires = _rewritten(kept.wires, kept.head, own)
            asked = [self._leg_receipt(each, name) for each in owed] if owed else None
            if far is None:
                self._take_counted(own, wires, asked)
            else:
                far.send_run(Kept(own, wires, asked, 0, kept.in_doubt))

    def _take_counted(self, head: SendHead, wires: list[bytes], receipts: list[str] | None) -> None:
        """Let SENDs that were counted when they came take effect at this hub, which counts them. Raises
        ProtocolError.
        """
        self._totals.messages_in_count -= len(wires)
        self._take_here(SendRun(head, wires, sum(map(len, wires)), receipts))

    def _leg_receipt(self, owed: Owed, name: str) -> str:
        """Return a receipt for the part of a SEND to several hubs that goes to these destinations."""
        self._last_receipt += 1
        receipt_id = f"{self.own_receipt}{self._last_receipt}"
        self._replies.legs[receipt_id] = Leg(self._replies, owed, name)
        return receipt_id

    def _own_receipt(self, callback: Callable[[], None]) -> str:
        self._last_receipt += 1
        receipt_id = f"{self.own_receipt}{self._last_receipt}"
        self._awaited[receipt_id.encode()] = callback
        return receipt_id

    def _shelter(self, kept: Kept) -> None:
        """Keep SENDs that have no home, in order."""
        if not kept.charge_bytes:
            kept.charge_bytes = sum(map(len, kept.wires)) + ENTRY_BYTES
            self.charge(kept.charge_bytes)
        self._homeless.append(kept)
        self._homeless_names.add(kept.head.destination)
        self._watch()

    def _begin_large(self, start: LargeSendStart) -> None:
        head = start.head
        homes = self._legs_of(head.destination)
        if homes is not None and len(homes) > 1:
            raise ProtocolError(
                "spans-hubs",
                f"{head.destination} lies on several hubs: a large body goes to one",
                "Send it to each.",
            )
        legs, copied = self._route_of(head.destination)
        if head.transaction is not None:
            if copied or (legs is not None and len(legs) > 1):
                raise ProtocolError(
                    "not-supported",
                    f"a large body to {head.destination} in a transaction: subscribers at several hubs are to get it",
                    "Send it without a transaction.",
                )
            legs = homes
            hub = self._bind(head.transaction, _HERE if homes is None else homes[0][0])
            legs = None if hub == _HERE else ((hub, head.destination),)
        if legs is None and not copied:
            self._take_here(start)
            return
        receipt = start.receipt
        own = self._with_global_reply_to(head, None if receipt is None else [receipt])
        confirming = ((_HERE, head.destination),) if legs is None else legs
        large: list[tuple[Far, str, bool]] = []
        try:
            large += [(self._far(hub), names, True) for hub, names in confirming if hub != _HERE]
        except _Away:
            raise _no_owner(head.destination) from None
        for hub, names in copied:
            try:
                large.append((self._far(hub), names, False))
            except _Away:
                self._missed_of(hub).add(names, 1)
                self._topics.missed(hub, 1)
        owed = None if receipt is None or len(confirming) < 2 else Owed([receipt], len(confirming))
        for far, names, confirms in large:
            leg = own if len(confirming) + len(copied) < 2 else own.with_headers({"destination": names})
            asked = receipt if owed is None else self._leg_receipt(owed, names)
            far.begin_large(leg, asked if confirms else None)
            if not confirms:
                self._topics.copied(far.hub, 1, head.content_length)
        self._large = {far: confirms for far, _names, confirms in large}
        self._large_is_here = False
        self._is_large_apart = True
        for hub, names in confirming:
            if hub == _HERE:
                self._large_is_here = True
                leg = head if "," not in head.destination else head.with_headers({"destination": names})
                self._take_here(LargeSendStart(leg, receipt if owed is None else self._leg_receipt(owed, names)))
        if not confirming:
            self._replies.receipt(receipt)

    def _go_on_large(self, event: LargeSendPiece | LargeSendEnd) -> None:
        for far in self._large:
            if isinstance(event, LargeSendPiece):
                far.send(event.data)
            else:
                far.end_large()
        if self._large_is_here:
            self._take_here(event)
        if isinstance(event, LargeSendEnd):
            self._large, self._is_large_apart = {}, False

    # ------------------------------------------------------------------ requests

    def behind(self, hub: str, callback: Callable[[], None]) -> None:
        """Call this when that hub has read what the client has sent to it. Satisfies `Behind`."""
        far = self._fars.get(hub)
        if any(self._goes_to(hub, name) for name in self._homeless_names):
            self._behind.append((hub, callback))
        elif far is None:
            callback()
        else:
            far.when_read(callback)

    def _goes_to(self, hub: str, destination: str) -> bool:
        return any(leg.removeprefix("?") in (hub, "") for leg, _name in self._legs_of(destination) or ())

    def _take_marks(self, far: Far) -> None:
        self._behind += [(far.hub, callback) for callback in far.take_marks()]

    def _go_behind(self) -> None:
        """Call those that have nothing to wait for any more."""
        behind, self._behind = self._behind, []
        for hub, callback in behind:
            self.behind(hub, callback)

    # ------------------------------------------------------------------ transactions

    def _begin(self, frame: Frame) -> None:
        name = frame.headers["transaction"]
        if name in self._transactions:
            raise ProtocolError(
                "transaction-exists",
                f"transaction {name!r} is open already",
                "COMMIT or ABORT it first, or choose another name.",
            )
        if len(self._transactions) >= self._limits.transactions_max:
            raise ProtocolError(
                "too-many-transactions",
                f"more than {self._limits.transactions_max} open transactions",
                "COMMIT or ABORT some; transactions_max of the listener is the limit.",
            )
        self._replies.receipt(frame.headers.get("receipt"))
        self._transactions[name] = _Transaction(Frame("BEGIN", {"transaction": name}))

    def _bind(self, name: str, hub: str) -> str:
        """Make a transaction one of this hub if it is none of another one; returns the hub. Raises ProtocolError."""
        transaction = self._transactions.get(name)
        if transaction is None:
            return hub  # the ERROR is made there
        if transaction.is_lost:
            raise _lost_transaction(name)
        if transaction.hub is None:
            if hub.startswith("?"):
                raise _no_owner(f"transaction {name!r}")
            transaction.hub = hub
            if hub == _HERE:
                self._take_here(transaction.begin)
            else:
                try:
                    self._far(hub).send_frame(transaction.begin, self.version)
                except _Away:
                    transaction.hub = None
                    raise _no_owner(f"transaction {name!r}") from None
        elif transaction.hub != hub:
            raise ProtocolError(
                "transaction-spans-shards",
                f"transaction {name!r} would span several hubs",
                "Destinations of one transaction need the same part in braces, such as /queue/{orders}.new and "
                "/queue/{orders}.done, to lie on one shard.",
            )
        return hub

    def _send_in_transaction(self, run: SendRun) -> None:
        head = run.head
        assert head.transaction is not None, "asked for before"
        legs = self._legs_of(head.destination)
        try:
            if legs is not None and len(legs) > 1:
                raise ProtocolError(
                    "transaction-spans-shards",
                    f"{head.destination} lies on several hubs",
                    "Destinations of one transaction need the same part in braces, such as /queue/{orders}.new.",
                )
            hub = self._bind(head.transaction, _HERE if legs is None else legs[0][0])
            if hub != _HERE:
                own = self._with_global_reply_to(head, run.receipts)
                wires = run.wires if own is head else _rewritten(run.wires, head, own)
                self._far(hub).send_in_transaction(own, wires, run.receipts, head.transaction)
                self._keep_copies(head.transaction, own, wires)
                return
            self._keep_copies(head.transaction, head, run.wires)
        except _Away:
            raise _no_owner(head.destination) from None
        except ProtocolError as error:
            error.identify("SEND", {"destination": head.destination, "transaction": head.transaction})
            raise
        self._take_here(run)

    def _keep_copies(self, name: str, head: SendHead, wires: list[bytes]) -> None:
        """Keep SENDs of a transaction, of which copies leave when it is carried out. Raises ProtocolError."""
        transaction = self._transactions.get(name)
        if transaction is None or self._route_of(head.destination) == (self._legs_of(head.destination), ()):
            return
        size_bytes = sum(map(len, wires)) + ENTRY_BYTES
        if self._copies_held_bytes + size_bytes > self._limits.transaction_bytes_max:
            raise ProtocolError(
                "transaction-too-large",
                f"open transactions hold more than {self._limits.transaction_bytes_max} bytes for topics with "
                "subscribers at other hubs",
                "COMMIT more often, or raise transaction_bytes_max of the listener.",
            )
        self._copies_held_bytes += size_bytes
        self._charge_copies(size_bytes)
        plain = head.with_headers({"transaction": None})
        transaction.copies.append(Kept(plain, _rewritten(wires, head, plain), None, size_bytes))

    def _commit_with_copies(self, transaction: _Transaction, frame: Frame) -> Frame:
        """Return the COMMIT, behind whose RECEIPT copies leave."""
        asked = frame.headers.get("receipt")
        for kept in transaction.copies:
            destination = kept.head.destination
            self._committing[destination] = self._committing.get(destination, 0) + 1
        done = partial(self._committed, transaction, asked)
        receipt_id = self._own_receipt(done)
        if transaction.hub == _HERE:
            del self._awaited[receipt_id.encode()]
            self._replies.legs[receipt_id] = _Then(self._replies, asked, done)
        return Frame("COMMIT", {**frame.headers, "receipt": receipt_id})

    def _committed(self, transaction: _Transaction, asked: str | None) -> None:
        """Send the copies of a transaction that was carried out at its hub."""
        if self._is_closed:
            return
        for kept in transaction.copies:
            destination = kept.head.destination
            self._committing[destination] -= 1
            if not self._committing[destination]:
                del self._committing[destination]
            legs, copied = self._route_of(destination)
            for hub, _names in ((_HERE, destination),) if legs is None else legs:
                if hub == _HERE != transaction.hub:
                    self._take_here(SendRun(kept.head, kept.wires, sum(map(len, kept.wires)), None))
                    self._totals.messages_in_count -= len(kept.wires)
            self._send_copies(tuple(leg for leg in copied if leg[0] != transaction.hub), kept, is_begun=True)
        self._drop_copies(transaction)
        self._replies.receipt(asked)
        self.look()

    def _drop_copies(self, transaction: _Transaction) -> None:
        """Forget the copies of a transaction that has ended."""
        size_bytes = sum(kept.charge_bytes for kept in transaction.copies)
        transaction.copies.clear()
        self._copies_held_bytes -= size_bytes
        self._charge_copies(-size_bytes)

    def _finish(self, frame: Frame) -> None:
        """COMMIT or ABORT."""
        name = frame.headers["transaction"]
        transaction = self._transactions.pop(name, None)
        if transaction is not None and transaction.copies:
            if frame.command == "COMMIT" and not transaction.is_lost:
                frame = self._commit_with_copies(transaction, frame)
            else:
                self._drop_copies(transaction)
        if transaction is None:
            self._take_here(frame)
        elif transaction.is_lost:
            if frame.command == "COMMIT":
                raise _lost_transaction(name)
            self._replies.receipt(frame.headers.get("receipt"))
        elif transaction.hub is None or transaction.hub == _HERE:
            if transaction.hub is None:
                self._take_here(transaction.begin)
            self._take_here(frame)
        else:
            self._fars[transaction.hub].send_frame(frame, self.version)

    # ------------------------------------------------------------------ subscriptions

    def _subscribe(self, frame: Frame) -> None:
        headers = frame.headers
        destination = headers["destination"]
        key = headers.get("id", f"destination {destination}")
        if key in self._subs or any(orphan[0] == key for orphan in self._orphans):
            raise ProtocolError(
                "subscription-exists",
                f"subscription {key!r} is live already",
                "Give each subscription of a connection its own id, and UNSUBSCRIBE before you reuse it.",
            )
        if self._is_live_here(key):
            self._take_here(frame)  # its ERROR is made there
            return
        legs = self._legs_to_hear(headers)
        self._hear(key, frame)
        if legs is None:
            if not _is_pattern(destination):
                self._take_here(frame)
                self._subs_here[key] = _without_receipt(frame)
                return
            legs = ((_HERE, destination),)  # hubs may come
        self._subscribe_at(key, frame, legs, None)

    def _legs_to_hear(self, headers: dict[str, str]) -> Legs | None:
        """Return the hubs of a subscription; None: this one alone."""
        destination = headers["destination"]
        heard = self._heard_of(headers)
        if not heard:
            return self._legs_of(destination)
        names: dict[str, list[str]] = {}
        for address in parse_composite(destination):
            name = address.canonical
            if name not in heard:
                self._add_homes(address, names)
                continue
            is_usable = address.wildcard or self._topics.is_usable(name)
            names.setdefault(_HERE if is_usable else _NOWHERE, []).append(name)
            if address.wildcard and self._topics.has_ordered:
                for hub in self._elsewhere.placement.others():
                    names.setdefault(hub, []).append(name)
        return _legs_with(names)

    def _heard_of(self, headers: dict[str, str]) -> list[str]:
        """Return the topics and patterns of a subscription that this hub serves itself, whoever has their shards."""
        destination = headers["destination"]
        topics = self._topics
        if _TOPIC not in destination or not topics.is_on or wants_to_browse(headers):
            return []
        try:
            if durable_name_of(headers, destination) is not None:
                return []
            addresses = parse_composite(destination)
        except (DestinationNameError, DurableNameError, ProtocolError):
            return []  # its ERROR is made elsewhere
        return [
            address.canonical
            for address in addresses
            if (address.wildcard and address.kind.is_topic and not address.is_temporary) or topics.goes_direct(address)
        ]

    def _hear(self, key: str, frame: Frame) -> None:
        """Have other hubs send what a subscription is for. Its RECEIPT waits until they know."""
        heard = self._heard_of(frame.headers)
        if not heard:
            return
        self._heard[key] = heard
        for name in heard:
            self._topics.add(name)
        self._watch()
        asked = frame.headers.get("receipt")
        if asked is not None:
            owed = Owed([asked], 2, is_commit=True)
            frame.headers["receipt"] = self._leg_receipt(owed, "")
            self._topics.when_told(partial(self._replies.leg_done, owed))

    def _hear_no_more(self, key: str) -> None:
        for name in self._heard.pop(key, ()):
            self._topics.remove(name)

    def _change_over(self) -> None:
        """Make subscriptions to topics where they belong now: a hub has come or gone that can't tell its interest."""
        waiting = {key for key, _frame, _made in self._orphans}
        for key, frame in [*self._subs_here.items(), *((key, sub.frame) for key, sub in self._subs.items())]:
            destination = frame.headers["destination"]
            if _TOPIC not in destination:
                continue
            heard = self._heard_of(frame.headers)
            for name in heard:
                self._topics.add(name)
            self._hear_no_more(key)
            if heard:
                self._heard[key] = heard
            if key in waiting:
                continue
            legs = self._legs_to_hear(frame.headers) or ((_HERE, destination),)
            sub = self._subs.get(key)
            hubs = {_HERE} if sub is None else sub.hubs
            if {hub for hub, _names in legs} == hubs:
                continue
            if _HERE in hubs:
                self._give_back(key)
            for hub in hubs:
                far = self._fars.get(hub)
                if far is not None and far.subs.pop(key, None) is not None:
                    far.send_frame(_end_of(frame), self.version)
            self._subs_here.pop(key, None)
            self._subs[key] = _Sub(frame, set(), covers_all=_is_pattern(destination))
            self._orphans.append((key, frame, None))

    def _subscribe_at(self, key: str, frame: Frame, legs: Legs, made: Callable[[], None] | None) -> None:
        """Make a subscription at some hubs; at others it is an orphan. `made`: called when one leg of it is made."""
        headers = frame.headers
        receipt_id = headers.get("receipt")
        if len(legs) > 1 and receipt_id is not None:
            made = Latch(len(legs), partial(self._replies.receipt, receipt_id))
        sub = self._subs.get(key)
        if sub is None:
            wildcard = _is_pattern(headers["destination"])
            sub = self._subs[key] = _Sub(_without_receipt(frame), set(), wildcard)
            if wildcard:
                self._watch()
        for hub, name in legs:
            leg = Frame("SUBSCRIBE", {**headers, "destination": name} if len(legs) > 1 else {**headers})
            leg.headers.pop(ORDERED_ONLY, None)
            if len(legs) > 1:
                leg.headers.pop("receipt", None)
            if hub != _HERE and sub.covers_all and self._topics.is_on:
                leg.headers[ORDERED_ONLY] = "true"
            if hub == _HERE:
                sub.hubs.add(hub)
                self._take_here(leg)
                if made is not None:
                    made()
                continue
            try:
                far = self._far(hub)
            except _Away:
                self._orphans.append((key, leg, made))
                continue
            sub.hubs.add(hub)
            far.subs[key] = _without_receipt(leg)
            if made is not None:
                leg.headers["receipt"] = self._own_receipt(made)
            far.send_frame(leg, self.version)

    def _unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        name = headers.get("destination")
        key = headers.get("id", f"destination {name}")
        if key not in self._subs and "id" not in headers and not self._is_live_here(key):
            named = [key for key, sub in self._subs.items() if sub.frame.headers["destination"] == name]
            if len(named) == 1:
                key = named[0]
        sub = self._subs.pop(key, None)
        if sub is None and key not in self._subs_here and "id" not in headers:
            named = [each for each, made in self._subs_here.items() if made.headers["destination"] == name]
            key = named[0] if len(named) == 1 else key
        self._hear_no_more(key)
        if sub is None:
            self._subs_here.pop(key, None)
            self._unsubscribe_durable(frame, name)
            return
        self._orphans = [orphan for orphan in self._orphans if orphan[0] != key]
        receipt_id = headers.get("receipt")
        hubs = sorted(sub.hubs)
        done: Callable[[], None] | None = None
        if len(hubs) != 1 and receipt_id is not None:
            done = Latch(len(hubs) + 1, partial(self._replies.receipt, receipt_id))
            headers = {name: value for name, value in headers.items() if name != "receipt"}
        for hub in hubs:
            own = Frame("UNSUBSCRIBE", {**headers})
            if hub == _HERE:
                self._take_here(own)
                if done is not None:
                    done()
            elif (far := self._fars.get(hub)) is not None:
                far.subs.pop(key, None)
                if done is not None:
                    own.headers["receipt"] = self._own_receipt(done)
                far.send_frame(own, self.version)
            elif done is not None:
                done()
        if done is not None:
            done()

    def _unsubscribe_durable(self, frame: Frame, name: str | None) -> None:
        """End a durable subscription without a consumer, where its topic lives."""
        legs: Legs | None = None
        try:
            durable_name = durable_name_of(frame.headers, name)
            if name is not None and durable_name is not None:
                legs = self._legs_of(name)
            elif durable_name is not None:
                legs = self._legs_of_durable(durable_name)
        except (DestinationNameError, DurableNameError):
            legs = None
        if legs is None or len(legs) != 1:
            self._take_here(frame)
            return
        try:
            self._far(legs[0][0]).send_frame(frame, self.version)
        except _Away:
            raise _no_owner(name or "") from None

    def _legs_of_durable(self, durable_name: str) -> Legs | None:
        """Return the hub of a durable subscription whose topic is not named; None: this one. Raises ProtocolError."""
        others = self._elsewhere.placement.others()
        if not others or self._hub.registry.durables.find(self._owned_client_id(), durable_name, None) is not None:
            return None
        if len(others) > 1:
            raise ProtocolError(
                "missing-header",
                f"UNSUBSCRIBE of the durable subscription {durable_name!r} without its topic",
                "The topic tells the hub that has it: add the header destination.",
            )
        return ((others[0], ""),)

    def _set_credit(self, run: SendRun) -> None:
        """Have a request about credit take effect at each hub that has a part of the subscription, and when the
        subscription is made again. Raises ProtocolError.
        """
        headers = run.head.headers
        key = headers.get("id", "")
        if key not in self._subs and key not in self._subs_here:
            key = f"destination {key}"
        sub = self._subs.get(key)
        if sub is None:
            self._take_here(run)
            if (frame := self._subs_here.get(key)) is not None:
                change = credit_change_of(headers, asked_bytes_max=self._limits.credit_bytes_max)
                self._subs_here[key] = Frame("SUBSCRIBE", change.applied_to(frame.headers))
            return
        if run.head.reply_to is not None:
            raise about_send(
                ProtocolError(
                    "not-supported",
                    f"subscription {key[:200]!r} is at other hubs, which do not answer to reply-to",
                    "Ask for a receipt instead.",
                ),
                run,
            )
        try:
            change = credit_change_of(headers, asked_bytes_max=self._limits.credit_bytes_max)
        except ProtocolError as error:
            raise about_send(error, run) from None
        sub.frame = Frame("SUBSCRIBE", change.applied_to(sub.frame.headers))
        self._orphans = [
            (other, Frame("SUBSCRIBE", change.applied_to(frame.headers)) if other == key else frame, made)
            for other, frame, made in self._orphans
        ]
        request = {"destination": CREDIT_REQUEST, "id": headers["id"], **change.headers()}
        legs = len(sub.hubs) + 1
        latches = [Latch(legs, partial(self._replies.receipt, each)) for each in run.receipts or ()]
        for hub in sorted(sub.hubs):
            far = None if hub == _HERE else self._fars.get(hub)
            if hub == _HERE:
                self._take_here(SendRun(run.head, run.wires[:1], len(run.wires[0]), None))
            elif far is not None:
                if (frame := far.subs.get(key)) is not None:
                    far.subs[key] = Frame("SUBSCRIBE", change.applied_to(frame.headers))
                asked = {"receipt": self._own_receipt(partial(_call_all, latches))} if latches else {}
                far.send_frame(Frame("SEND", {**request, **asked}), self.version)
            if far is None:
                _call_all(latches)
        _call_all(latches)

    # ------------------------------------------------------------------ ACK and NACK

    def _ack_run(self, run: AckRun) -> None:
        """Pass a run of ACKs on. Those of lost flows are forgotten."""
        if not self._last_serial:
            self._take_here(run)
            return
        command = b"NACK" if run.nack else b"ACK"
        if self.version == "1.2":
            self._ack_ids(command, run)
        else:
            self._ack_messages(command, run)

    def _ack_ids(self, command: bytes, run: AckRun) -> None:
        tokens: list[bytes] = run.tokens  # type: ignore[assignment]
        first = tokens[0]
        prefix = first[: first.find(b".") + 1]
        if prefix and prefix[:-1].isdigit():
            lead = command + b"\nid:"
            data = lead + (_ACK_END + lead).join(tokens) + _ACK_END
            ids = b"".join(tokens)
            needs_no_escape = len(ids.translate(None, _ESCAPED)) == len(ids)
            if needs_no_escape and data.count(b"id:" + prefix) == len(tokens):
                far = self._far_of_serial(prefix)
                if far is not None:
                    far.send(data.replace(b"id:" + prefix, b"id:"))
                return
        here: list[bytes] = []
        for token in tokens:
            found = self._far_of_ack(token)
            if isinstance(found, str):
                here.append(token)
            elif found is not None:
                own = token.partition(b".")[2] if token.startswith(found.prefix) else token
                found.send(command + b"\nid:" + escape_value(own.decode(), "1.2").encode() + _ACK_END)
        if here:
            self._take_here(AckRun(run.nack, here))

    def _far_of_serial(self, prefix: bytes) -> Far | None:
        return next((far for far in self._fars.values() if far.prefix == prefix), None)

    def _far_of_ack(self, token: bytes) -> Far | str | None:
        """Return the flow of a delivery, by its ack header; _HERE: none; None: a lost one."""
        serial, dot, _rest = token.partition(b".")
        if dot and serial.isdigit() and len(serial) < 12 and 0 < int(serial) <= self._last_serial:
            return self._far_of_serial(serial + dot)
        key = token.partition(b"-")[0]
        if key.isdigit() and len(key) < TOKEN_LENGTH:
            return _HERE  # an ack header of this hub; what names a message-id instead begins with its token
        return self._far_of_message(None, token)

    def _far_of_message(self, subscription_id: bytes | None, message_id: bytes) -> Far | str | None:
        """Return the flow of a delivery, by its message-id; _HERE: none; None: a lost one."""
        token, _dash, digits = message_id.rpartition(b"-")
        number = int(digits) if digits.isdigit() and len(digits) < 19 else 0
        named = None if subscription_id is None else self._subs.get(subscription_id.decode())
        if named is not None and len(named.hubs) == 1 and not named.covers_all:
            (hub,) = named.hubs
            if (only := self._fars.get(hub)) is not None:
                return only  # whatever the number: a dead letter has that of another hub
        if token == self._hub.message_token and self._hub.has_number(number):
            some = [far for far in self._fars.values() if far.subs]
            return some[0] if len(some) == 1 and not self._unsettled_here() else _HERE
        shard = shard_of_number(number)
        for far in self._fars.values():
            if far.has_message(token, shard, self._elsewhere):
                return far
        if token.startswith(_LOG_TOKEN):
            name = None if subscription_id is None else subscription_id.decode()
            for far in self._fars.values():
                for key, frame in far.subs.items():
                    if key == name or (name is None and frame.headers["destination"].startswith("/log/")):
                        return far
            return _HERE
        known = subscription_id is None or subscription_id.decode() in self._subs
        return None if known and self._last_serial > len(self._fars) else _HERE

    def _ack_messages(self, command: bytes, run: AckRun) -> None:
        here: list[tuple[bytes | None, bytes]] = []
        tokens: list[tuple[bytes | None, bytes]] = run.tokens  # type: ignore[assignment]
        for subscription_id, message_id in tokens:
            found = self._far_of_message(subscription_id, message_id)
            if isinstance(found, str):
                here.append((subscription_id, message_id))
            elif found is not None:
                lines = b"" if subscription_id is None else b"subscription:" + self._escaped(subscription_id) + b"\n"
                found.send(command + b"\n" + lines + b"message-id:" + self._escaped(message_id) + _ACK_END)
        if here:
            self._take_here(AckRun(run.nack, here))

    def _escaped(self, value: bytes) -> bytes:
        return escape_value(value.decode(), self.version).encode()

    def _ack(self, frame: Frame) -> None:
        """ACK or NACK with a receipt or in a transaction."""
        headers = frame.headers
        if self.version == "1.2":
            found = self._far_of_ack(headers["id"].encode())
        else:
            subscription_id = headers.get("subscription")
            found = self._far_of_message(
                None if subscription_id is None else subscription_id.encode(), headers["message-id"].encode()
            )
        transaction = headers.get("transaction")
        if found is None:
            if transaction is None and "receipt" not in headers:
                return
            raise ProtocolError(
                "unknown-delivery",
                "this message is not with this connection any more: the hub that had delivered it was lost",
                "It is redelivered, marked as such.",
            )
        hub = found.hub if isinstance(found, Far) else _HERE
        if transaction is not None:
            self._bind(transaction, hub)
        if not isinstance(found, Far):
            self._take_here(frame)
            return
        if self.version == "1.2" and headers["id"].encode().startswith(found.prefix):
            frame = Frame(frame.command, {**headers, "id": headers["id"].partition(".")[2]})
        found.send_frame(frame, self.version)

    # ------------------------------------------------------------------ what comes back

    def control(self, far: Far, data: bytes) -> None:
        """Pass RECEIPTs on, and look at them; an ERROR ends the connection."""
        passed: list[bytes] = []
        for frame in data.split(NUL_LF)[:-1]:
            if frame.startswith(_RECEIPT):
                receipt_id = frame[len(_RECEIPT) : frame.index(b"\n", len(_RECEIPT))]
                far.receipted(receipt_id)
                if receipt_id.startswith(self._own_receipt_bytes):
                    self._own_receipted(receipt_id, frame)
                else:
                    passed.append(frame)
            elif frame.startswith(b"ERROR\n"):
                if passed:
                    self._outbound.send_control(NUL_LF.join(passed) + b"\0", len(passed))
                    passed = []
                # Else the flow ends, and another hub has its destinations, or will have them.
                if b"\ncode:shutdown\n" not in frame and b"\ncode:shard-away\n" not in frame:
                    self._pass_on_error(self._with_asked_receipt(frame) + b"\0")
            elif not frame.startswith(b"CONNECTED\n"):
                passed.append(frame)  # a notice, such as the end of what a browser sees
        if passed:
            self._outbound.send_control(NUL_LF.join(passed) + b"\0", len(passed))

    def _own_receipted(self, receipt_id: bytes, frame: bytes) -> None:
        """Take a RECEIPT that the client has not asked for."""
        leg = self._replies.legs.pop(receipt_id.decode(), None)
        if leg is not None:
            lines = (line.partition(b":") for line in frame.split(b"\n"))
            headers = {name.decode(): unescape(value.decode(), self.version) for name, _colon, value in lines}
            leg.done(headers.get("durability", MEMORY), list(_places_of(headers)))
            return
        awaited = self._awaited.pop(receipt_id, None)
        if awaited is not None:
            awaited()

    def _with_asked_receipt(self, frame: bytes) -> bytes:
        """Return an ERROR with the receipt that the client has asked for, in place of that of one leg of its SEND."""
        start = b"\nreceipt-id:" + self._own_receipt_bytes
        if start not in frame:
            return frame
        before, _found, rest = frame.partition(start)
        digits, _newline, behind = rest.partition(b"\n")
        asked = self._replies.asked_for(self.own_receipt + digits.decode())
        if asked is None or asked.startswith(self.own_receipt):
            return before + b"\n" + behind
        return before + b"\nreceipt-id:" + escape_value(asked, self.version).encode() + b"\n" + behind

    # ------------------------------------------------------------------ lost and found

    def lost(self, far: Far) -> None:
        """Take back what a lost flow had to do: SENDs and subscriptions look for another home."""
        if self._fars.get(far.hub) is far:
            del self._fars[far.hub]
        self._take_marks(far)
        if self._is_closed:
            return
        kept = far.take_kept()
        if self._large.pop(far, False):
            self._fail(_in_doubt("a large SEND was under way"))
            return
        if far.in_doubt:
            self._fail(_in_doubt(f"{next(iter(far.in_doubt.values()))} was not confirmed"))
            return
        for transaction in self._transactions.values():
            if transaction.hub == far.hub:
                transaction.is_lost = True
        if self._leaving is None:
            for key, frame in far.subs.items():
                self._subs[key].hubs.discard(far.hub)
                made = None
                waiting = far.asked.pop(key, None)
                if waiting is not None:
                    frame = Frame("SUBSCRIBE", {**frame.headers, "receipt": waiting})
                    made = self._awaited.pop(waiting.encode(), None)
                    if made is not None:
                        frame.headers.pop("receipt")
                self._orphans.append((key, frame, made))
        older = list(self._homeless)
        self._homeless.clear()
        for each in (*kept, *older):
            self._shelter(each)
        self.look()

    def can_let_go(self, shard: int) -> bool:
        """Return whether all that this client has in a shard of this hub can be made again elsewhere: not the place of
        a reader of a log, and not what a browser has seen.
        """
        if self._leaving is not None:
            return False
        for key, frame in self._found_in(shard):
            headers = frame.headers
            if key in self._subs and len(self._subs[key].hubs) > 1:
                return False
            if wants_to_browse(headers) or (headers["destination"].startswith(LOG_PREFIX) and "group" not in headers):
                return False
        return True

    def let_go(self, shard: int, parked: Sequence[ParkedRun]) -> None:
        """Have subscriptions to a shard of this hub, and SENDs that wait for it, look for another home: it leaves."""
        for key, frame in self._found_in(shard):
            self._subs_here.pop(key, None)
            self._give_back(key)
            self._subs[key] = _Sub(frame, set(), covers_all=False)
            self._orphans.append((key, frame, None))
        newer = list(self._homeless)
        self._homeless.clear()
        for kept in (*map(self._kept_of, parked), *newer):
            self._shelter(kept)
        self._watch()

    def _found_in(self, shard: int) -> list[tuple[str, Frame]]:
        """Return the subscriptions to destinations of a shard of this hub, but for wildcards."""
        found = list(self._subs_here.items())
        found += [(key, sub.frame) for key, sub in self._subs.items() if _HERE in sub.hubs and not sub.covers_all]
        return [(key, frame) for key, frame in found if self._is_in(frame.headers["destination"], shard)]

    def _is_in(self, destination: str, shard: int) -> bool:
        shard_of = self._hub.shard_of
        try:
            named = [address.canonical for address in parse_composite(destination) if not address.is_temporary]
        except DestinationNameError:
            return False  # its ERROR is being made
        return shard_of is not None and any(shard_of(name) == shard for name in named)

    def _kept_of(self, run: ParkedRun) -> Kept:
        messages = run.messages if run.shared is None else run.shared.rewritten(run.messages)[0]
        head = messages[0].head
        assert isinstance(head, SendHead), "it came in a SEND"
        receipts: list[str] | None = None
        owed = run.owed
        if owed is not None:
            receipts = owed.receipt_ids
            if not owed.is_single:
                done = Latch(len(messages), partial(self._replies.leg_done, owed))
                receipts = [self._own_receipt(done) for _message in messages]
        return Kept(head, [message.wire for message in messages], receipts, 0, is_part=True)

    def refused(self, far: Far, reason: str) -> None:
        """Fail the connection: another flow to that hub would be refused, too."""
        if self._fars.get(far.hub) is far:
            del self._fars[far.hub]
        self._take_marks(far)
        if not self._is_closed:
            self._fail(
                ProtocolError(
                    "refused-by-hub",
                    f"hub {far.hub!r} serves no flow for this connection: {reason}",
                    "Run the same version of the software on all hubs. What had no RECEIPT was not done.",
                )
            )

    def look(self) -> None:
        """Look for homes: a hub has become reachable, or destinations have moved."""
        if self._is_closed:
            return
        try:
            self._look()
            self._flush_here()
        except ProtocolError as error:
            self._fail(error)

    def _look(self) -> None:
        if self._topics.is_on is not self._was_on:
            self._was_on = self._topics.is_on
            self._forget_routes()
            self._change_over()
        orphans, self._orphans = self._orphans, []
        for key, frame, made in orphans:
            if key in self._subs:
                self._subscribe_again(key, frame, made)
        self._cover_new_hubs()
        homeless, self._homeless = self._homeless, deque()
        self._homeless_names.clear()
        while homeless:
            kept = homeless.popleft()
            destination = kept.head.destination
            if destination in self._homeless_names or destination in self._committing:
                self._shelter(kept)
                continue
            legs, copied = (self._legs_of(destination), ()) if kept.is_part else self._route_of(destination)
            charge_bytes, kept.charge_bytes = kept.charge_bytes, 0
            try:
                self._send_on(legs, copied, self._marked(kept))
            except _Away:
                kept.charge_bytes = charge_bytes
                self._shelter(kept)
            else:
                self.release(charge_bytes)
        self._go_behind()
        is_needed = self._orphans or self._homeless or self._has_wildcards or self._has_topics
        if not is_needed and self._is_watching:
            self._is_watching = False
            self._elsewhere.unwatch(self.look)
        if self._leaving is not None:
            self._disconnect_fars(self._leaving)

    @property
    def _has_topics(self) -> bool:
        frames = (*self._subs_here.values(), *(sub.frame for sub in self._subs.values()))
        return any(_TOPIC in frame.headers["destination"] for frame in frames)

    @property
    def _has_wildcards(self) -> bool:
        return any(sub.covers_all for sub in self._subs.values())

    def _subscribe_again(self, key: str, frame: Frame, made: Callable[[], None] | None) -> None:
        legs: Legs = self._legs_to_hear(frame.headers) or ((_HERE, frame.headers["destination"]),)
        sub = self._subs[key]
        if sub.covers_all:
            # Only the part that was lost: the others are where they were.
            legs = tuple((hub, name) for hub, name in legs if hub not in sub.hubs)
            if not legs and made is not None:
                made()
        if legs:
            if made is not None and len(legs) > 1:
                made = Latch(len(legs), made)
            self._subscribe_at(key, frame, legs, made)

    def _cover_new_hubs(self) -> None:
        """Make subscriptions to wildcards at hubs that have joined."""
        waiting = {key for key, _frame, _made in self._orphans}
        for key, sub in self._subs.items():
            if sub.covers_all and key not in waiting:
                legs = self._legs_to_hear(sub.frame.headers) or ()
                new = tuple((hub, name) for hub, name in legs if hub not in sub.hubs)
                if new:
                    self._subscribe_at(key, Frame("SUBSCRIBE", {**sub.frame.headers}), new, None)

    def _marked(self, kept: Kept) -> Kept:
        """Return SENDs with a header that says so if they may have arrived before."""
        if not kept.in_doubt:
            return kept
        head = kept.head
        if MARK.rstrip() in head.block.split(b"\n"):
            return Kept(head, kept.wires, kept.receipts, 0, is_part=kept.is_part)
        marked = head.with_headers({"possible-duplicate": "true"})
        return Kept(marked, _rewritten(kept.wires, head, marked), kept.receipts, 0, is_part=kept.is_part)

    # ------------------------------------------------------------------ limits

    def charge(self, size_bytes: int) -> None:
        """Count bytes of the client that are on their way to other hubs."""
        if self._underway is None:
            self._underway = _Underway(self._lanes.name, self._limits, self._hub.manager, self._hub.clock)
        self._underway.account.charge(1, size_bytes, self._source)

    def release(self, size_bytes: int) -> None:
        """Count bytes that have arrived, or are dropped."""
        if self._underway is not None and size_bytes:
            self._underway.account.release(1, size_bytes)

    @property
    def is_full(self) -> bool:
        """Whether as much is on its way to other hubs as may be."""
        return self._hold.is_on

    def _may_read_on(self) -> bool:
        """The bytes that were not read yet may hold ACKs that free the destinations."""
        if self._underway is None or self._underway.account.limiter.used_bytes > self._limits.stash_overfull_bytes_max:
            return False
        acked = any(sub.frame.headers.get("ack", ACK_AUTO) != ACK_AUTO for sub in self._subs.values())
        return acked or bool(self._unsettled_here())

    @property
    def unconfirmed_count(self) -> int:
        """Runs of SENDs that no hub has done yet."""
        return len(self._homeless) + sum(far.kept_count for far in self._fars.values())

    # ------------------------------------------------------------------ end

    def _disconnect(self, frame: Frame) -> None:
        """DISCONNECT takes effect here when all other hubs have done what came before."""
        self._leaving = frame
        self._orphans.clear()
        self._disconnect_fars(frame)

    def _disconnect_fars(self, frame: Frame) -> None:
        if self._committing:
            return  # copies are to leave before
        for far in list(self._fars.values()):
            far.disconnect(frame.headers.get("receipt"))
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._leaving is not None and not self._fars and not self._homeless and not self._committing:
            frame, self._leaving = self._leaving, None
            self._take_here(frame)

    def ended(self, far: Far) -> None:
        """Note that another hub has ended its session in order."""
        if self._fars.get(far.hub) is far:
            del self._fars[far.hub]
        self._take_marks(far)
        self._go_behind()
        if not self._is_closed:
            self._leave_if_done()

    def review(self) -> None:
        """Forget routes: permissions or homes have changed."""
        self._forget_routes()

    def close(self) -> None:
        """End all flows: the connection is gone. What was sent takes effect at the other hubs."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_watching:
            self._elsewhere.unwatch(self.look)
        for far in list(self._fars.values()):
            self._take_marks(far)
            far.close()
        self._fars.clear()
        self._homeless.clear()
        self._homeless_names.clear()
        self._go_behind()
        self._subs.clear()
        self._subs_here.clear()
        for key in list(self._heard):
            self._hear_no_more(key)
        self._orphans.clear()
        self._transactions.clear()
        self._awaited.clear()
        self._large = {}
        if self._underway is not None:
            account = self._underway.account
            account.release(account.limiter.used_count, account.limiter.used_bytes)
            self._underway.close()
            self._underway = None
        if self._copies is not None:
            copies = self._copies.account
            copies.release(0, copies.limiter.used_bytes)
            self._copies.close()
            self._copies = None
        self._source.close()
        self._hold.release()


def _call_all(callbacks: Iterable[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _legs_with(names: Mapping[str, Sequence[str]]) -> Legs | None:
    """Return legs to hubs, each with its destinations; None: this hub alone."""
    if names.keys() == {_HERE}:
        return None
    return tuple((hub, ",".join(of_hub)) for hub, of_hub in names.items())


def _rewritten(wires: Iterable[bytes], old: SendHead, new: SendHead) -> list[bytes]:
    """Return wires with another header block."""
    start = len(old.block)
    return [new.block + wire[start:] for wire in wires]


def _places_of(headers: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what a RECEIPT says of logs: log (empty: it names none), first index, count of records."""
    if "index" in headers:
        yield "", (int(headers["index"]), int(headers["count"]))
    for place in headers["indexes"].split(",") if "indexes" in headers else ():
        log, _sign, index = place.rpartition("=")
        yield log, (int(index), int(headers["count"]))


def _without_receipt(frame: Frame) -> Frame:
    return Frame(frame.command, {name: value for name, value in frame.headers.items() if name != "receipt"})


def _end_of(subscribe: Frame) -> Frame:
    """Return the UNSUBSCRIBE of a subscription."""
    headers = subscribe.headers
    name = "id" if "id" in headers else "destination"
    return Frame("UNSUBSCRIBE", {name: headers[name]})


def _is_pattern(destination: str) -> bool:
    return ("*" in destination or ">" in destination) and any(each.wildcard for each in parse_composite(destination))


def _no_owner(what: str) -> ProtocolError:
    return ProtocolError("no-owner", f"no hub that can be reached has {what} now", "Send it again in a while.")


def _lost_transaction(name: str) -> ProtocolError:
    return ProtocolError(
        "transaction-lost",
        f"transaction {name!r} is lost: the hub that had it is gone",
        "Nothing of it was done. Begin it again.",
    )


def _in_doubt(what: str) -> ProtocolError:
    return ProtocolError(
        "in-doubt",
        f"{what} when the hub that has its destination was lost",
        "It may have been done, or not. Connect again, and send it again if it may come twice.",
    )


def opening_of(
    identity: Identity,
    version: Version,
    framing: Framing,
    limits: StompLimits,
    *,
    peer: str,
    session_id: str,
    client_id: str,
) -> dict[str, object]:
    """Return the facts about a client that the other hub needs."""
    return {
        "user": identity.user,
        "groups": sorted(identity.groups),
        "origin": identity.origin,
        "version": version,
        "framing": "plain" if framing is PLAIN else "websocket",
        "limits": attrs.asdict(limits),
        "peer": peer,
        "session": session_id,
        "client_id": client_id,
    }
