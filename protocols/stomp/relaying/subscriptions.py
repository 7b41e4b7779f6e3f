"""Subscriptions of one client: at this hub, at others, or at several; without a home they wait for one (*orphans*).

A subscription to topics that is not durable stays at this hub, which tells the others what it is interested in
(*heard*). A wildcard covers all hubs, also those that join later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import attrs

from ....flow.latch import Latch
from ....queues.durables import DurableNameError, names_client
from ....queues.logs.table import PREFIX as LOG_PREFIX
from ....queues.names import DestinationNameError, parse_composite
from ..browsing import wants_to_browse
from ..errors import ProtocolError
from ..frames import Frame, SendRun
from ..placement import Elsewhere
from ..replies import Owed
from ..routing import CREDIT_REQUEST, about_send
from ..subscribe_headers import (
    ACK_AUTO,
    FOUND,
    IF_ANY,
    IN_FORCE,
    ORDERED_ONLY,
    PAUSED,
    CreditChange,
    credit_change_of,
    durable_name_of,
    unknown_durable,
)
from .answers import Answers
from .far import Far
from .flows import Away, Flows
from .near import NearSession
from .refusals import no_owner
from .routes import HERE, TOPIC, Legs, Routes, is_pattern

HEARING_SECONDS: Final = 1.0
"""Time for which the RECEIPT of a SUBSCRIBE to a topic waits for hubs that do not answer. A stopped hub would delay all
subscribers of the others by the time until its link is given up; what its own clients send before it knows misses them,
as what it had under way when it stopped. A durable subscription waits: nothing that is confirmed is to miss it.
"""


@attrs.define(eq=False)
class Subscribed:
    """One live subscription, and the hubs that have a part of it."""

    frame: Frame
    hubs: set[str]
    covers_all: bool
    """Whether all hubs are to have a part: a wildcard."""


@attrs.frozen(eq=False)
class _Orphan:
    """SUBSCRIBE without a home."""

    key: str
    frame: Frame
    made: Callable[[], None] | None
    """Called when it is made."""


class FarSubscriptions:
    """Subscriptions of one client, wherever they are."""

    def __init__(
        self,
        near: NearSession,
        elsewhere: Elsewhere,
        routes: Routes,
        flows: Flows,
        answers: Answers,
        send: Callable[[SendRun], None],
    ) -> None:
        """`send`: sends the answer to a request, wherever that goes. Raises ProtocolError."""
        self._near = near
        self._send = send
        self._elsewhere = elsewhere
        self._topics = elsewhere.topics
        self._routes = routes
        self._flows = flows
        self._answers = answers
        self._live: dict[str, Subscribed] = {}
        self._here: dict[str, Frame] = {}
        """SUBSCRIBEs to destinations of this hub alone, without their receipts."""
        self._orphans: list[_Orphan] = []
        self._heard: dict[str, list[str]] = {}
        """Topics and patterns of each subscription that this hub has told the others."""
        self._credit_asked: dict[str, str] = {}
        """Receipts of requests about credit that are not back, with the hub of each."""

    # ------------------------------------------------------------------ what others ask

    def get(self, key: str) -> Subscribed | None:
        """Return a subscription of which another hub has, or may get, a part."""
        return self._live.get(key)

    @property
    def acks(self) -> bool:
        """Whether there is one whose messages the client acknowledges."""
        return any(sub.frame.headers.get("ack", ACK_AUTO) != ACK_AUTO for sub in self._live.values())

    @property
    def need_look(self) -> bool:
        """Whether something is to be done when other hubs come, or destinations move."""
        return (
            bool(self._orphans)
            or any(sub.covers_all or TOPIC in sub.frame.headers["destination"] for sub in self._live.values())
            or any(TOPIC in frame.headers["destination"] for frame in self._here.values())
        )

    # ------------------------------------------------------------------ SUBSCRIBE

    def subscribe(self, frame: Frame) -> None:
        """Take SUBSCRIBE. Raises ProtocolError."""
        headers = frame.headers
        destination = headers["destination"]
        key = headers.get("id", f"destination {destination}")
        if key in self._live or key in self._orphan_keys:
            raise ProtocolError(
                "subscription-exists",
                f"subscription {key!r} is live already",
                "Give each subscription of a connection its own id, and UNSUBSCRIBE before you reuse it.",
            )
        if self._near.is_live(key):
            self._near.take(frame)  # its ERROR is made there
            return
        legs = self._routes.hearing(headers)
        self._hear(key, frame)
        if legs is None:
            if not is_pattern(destination):
                self._near.take(frame)
                self._here[key] = _without_receipt(frame)
                return
            legs = ((HERE, destination),)  # hubs may come
        self._subscribe_at(key, frame, legs, None)

    def _hear(self, key: str, frame: Frame) -> None:
        """Have other hubs send what a subscription is for. Its RECEIPT waits until they know, for a time."""
        heard = self._routes.heard(frame.headers)
        if not heard:
            return
        self._heard[key] = heard
        for name in heard:
            self._topics.add(name)
        self._flows.watch()
        asked = frame.headers.get("receipt")
        if asked is not None:
            owed = Owed([asked], 2, is_commit=True)
            frame.headers["receipt"] = self._answers.leg(owed, "")
            done = partial(self._near.replies.leg_done, owed)
            self._topics.when_told(done, patience_seconds=HEARING_SECONDS)

    def _hear_no_more(self, key: str) -> None:
        for name in self._heard.pop(key, ()):
            self._topics.remove(name)

    def _subscribe_at(self, key: str, frame: Frame, legs: Legs, made: Callable[[], None] | None) -> None:
        """Make a subscription at some hubs; at others it is an orphan. `made`: called when one leg of it is made."""
        headers = frame.headers
        is_divided = len(legs) > 1
        receipt_id = headers.get("receipt")
        if is_divided and receipt_id is not None:
            made = Latch(len(legs), partial(self._near.replies.receipt, receipt_id))
        sub = self._live.get(key)
        if sub is None:
            sub = self._live[key] = Subscribed(_without_receipt(frame), set(), is_pattern(headers["destination"]))
            if sub.covers_all:
                self._flows.watch()
        for hub, name in legs:
            leg = Frame("SUBSCRIBE", {**headers, "destination": name} if is_divided else {**headers})
            leg.headers.pop(ORDERED_ONLY, None)
            if is_divided:
                leg.headers.pop("receipt", None)
            if hub != HERE and sub.covers_all and self._topics.is_on:
                leg.headers[ORDERED_ONLY] = "true"
            if hub == HERE:
                sub.hubs.add(hub)
                self._near.take(leg)
                if made is not None:
                    made()
                continue
            try:
                far = self._flows.to(hub)
            except Away:
                self._orphans.append(_Orphan(key, leg, made))
                continue
            sub.hubs.add(hub)
            far.subs[key] = _without_receipt(leg)
            if made is not None:
                leg.headers["receipt"] = self._answers.told_by_hub(made)
            far.send_frame(leg, self._near.version)

    # ------------------------------------------------------------------ UNSUBSCRIBE

    def unsubscribe(self, frame: Frame) -> None:
        """Take UNSUBSCRIBE. Raises ProtocolError."""
        headers = frame.headers
        name = headers.get("destination")
        key = self._key_of(headers, name)
        sub = self._live.pop(key, None)
        self._hear_no_more(key)
        if sub is None:
            self._here.pop(key, None)
            self._unsubscribe_durable(frame, name)
            return
        self._orphans = [orphan for orphan in self._orphans if orphan.key != key]
        receipt_id = headers.get("receipt")
        hubs = sorted(sub.hubs)
        done: Callable[[], None] | None = None
        if len(hubs) != 1 and receipt_id is not None:
            done = Latch(len(hubs) + 1, partial(self._near.replies.receipt, receipt_id))
            headers = {name: value for name, value in headers.items() if name != "receipt"}
        for hub in hubs:
            own = Frame("UNSUBSCRIBE", {**headers})
            if hub == HERE:
                self._near.take(own)
                if done is not None:
                    done()
            elif (far := self._flows.at(hub)) is not None:
                far.subs.pop(key, None)
                if done is not None:
                    own.headers["receipt"] = self._answers.told_by_hub(done)
                far.send_frame(own, self._near.version)
            elif done is not None:
                done()
        if done is not None:
            done()

    def _key_of(self, headers: dict[str, str], name: str | None) -> str:
        """Return the subscription that an UNSUBSCRIBE means. Without an id it may name the only one to a
        destination.
        """
        key = headers.get("id", f"destination {name}")
        if "id" in headers or key in self._live:
            return key
        if not self._near.is_live(key):
            named = [each for each, sub in self._live.items() if sub.frame.headers["destination"] == name]
            if len(named) == 1:
                return named[0]
        if key not in self._here:
            named = [each for each, made in self._here.items() if made.headers["destination"] == name]
            if len(named) == 1:
                return named[0]
        return key

    def _unsubscribe_durable(self, frame: Frame, name: str | None) -> None:
        """End a durable subscription without a consumer, where its topic lives."""
        legs: Legs | None = None
        try:
            durable_name = durable_name_of(frame.headers, name)
            if name is not None and durable_name is not None:
                legs = self._routes.homes(name)
            elif durable_name is not None:
                self._unsubscribe_by_name(frame, durable_name)
                return
        except (DestinationNameError, DurableNameError):
            legs = None
        if legs is None or len(legs) != 1:
            self._near.take(frame)
            return
        try:
            self._flows.to(legs[0][0]).send_frame(frame, self._near.version)
        except Away:
            raise no_owner(name or "") from None

    def _unsubscribe_by_name(self, frame: Frame, durable_name: str) -> None:
        """End a durable subscription whose topic is not named: at this hub, or at whichever other one has it. Raises
        ProtocolError and DurableNameError.
        """
        near = self._near
        others = self._elsewhere.placement.others()
        client_id = near.client_id()
        if not others or near.hub.registry.durables.find(client_id, durable_name, None) is not None:
            near.take(frame)
            return
        if len(others) > 1 and not names_client(client_id):
            raise ProtocolError(
                "missing-header",
                f"UNSUBSCRIBE of the durable subscription {durable_name!r} without a client-id and without its topic",
                "Topics of several hubs may have one of this name: add the header destination.",
            )
        try:
            fars = [self._flows.to(hub) for hub in others]
        except Away:
            raise no_owner(f"the durable subscription {durable_name!r}") from None
        asked = frame.headers.get("receipt")
        found: list[bool] = []

        def answered(headers: Mapping[str, str]) -> None:
            found.append(headers.get(FOUND) != "false")
            if len(found) < len(fars):
                return
            if any(found):
                near.replies.receipt(asked)
            else:
                error = unknown_durable(durable_name, client_id)
                error.identify("UNSUBSCRIBE", frame.headers)
                near.fail(error)

        for far in fars:
            headers = {**frame.headers, "receipt": self._answers.asked_of_hub(answered), IF_ANY: "true"}
            far.send_frame(Frame("UNSUBSCRIBE", headers), near.version)

    # ------------------------------------------------------------------ credit

    def set_credit(self, run: SendRun) -> None:
        """Have a request about credit take effect at each hub that has a part of the subscription, and when the
        subscription is made again. Raises ProtocolError.
        """
        near = self._near
        headers = run.head.headers
        key = headers.get("id", "")
        if key not in self._live and key not in self._here:
            key = f"destination {key}"
        sub = self._live.get(key)
        if sub is None:
            near.take(run)
            if (frame := self._here.get(key)) is not None:
                change = credit_change_of(headers, asked_bytes_max=near.limits.credit_bytes_max)
                self._here[key] = _changed(frame, change)
            return
        if run.head.reply_to is not None and not sub.hubs:
            raise about_send(
                ProtocolError(
                    "no-owner",
                    f"no hub that can be reached has subscription {key[:200]!r} now, and could answer",
                    "Ask again in a while, or ask for a receipt instead.",
                ),
                run,
            )
        try:
            change = credit_change_of(headers, asked_bytes_max=near.limits.credit_bytes_max)
        except ProtocolError as error:
            raise about_send(error, run) from None
        sub.frame = _changed(sub.frame, change)
        self._orphans = [
            attrs.evolve(orphan, frame=_changed(orphan.frame, change)) if orphan.key == key else orphan
            for orphan in self._orphans
        ]
        request = {"destination": CREDIT_REQUEST, "id": headers["id"], **change.headers()}
        in_force: dict[str, object] = {"id": headers["id"], "paused": sub.frame.headers.get(PAUSED) == "true"}
        if change.count is not None:
            in_force |= {"credit_count": change.count, "credit_bytes": change.size_bytes}
        done = Latch(len(sub.hubs) + 1, partial(self._credit_is_set, run, in_force))
        is_asked = run.receipts is not None or run.head.reply_to is not None
        for hub in sorted(sub.hubs):
            if hub == HERE:
                try:
                    in_force |= near.set_credit(headers)
                except ProtocolError as error:
                    raise about_send(error, run) from None
                done()
            elif (far := self._flows.at(hub)) is None:
                done()
            else:
                if (frame := far.subs.get(key)) is not None:
                    far.subs[key] = _changed(frame, change)
                asked: dict[str, str] = {}
                if is_asked:
                    asked = {"receipt": self._ask_in_force(hub, in_force, done)}
                far.send_again_safe(Frame("SEND", {**request, **asked}), near.version)
        done()

    def _ask_in_force(self, hub: str, in_force: dict[str, object], done: Callable[[], None]) -> str:
        """Return a receipt for a request about credit to another hub, whose answer goes into `in_force`."""

        def answered(headers: Mapping[str, str]) -> None:
            self._credit_asked.pop(receipt_id, None)
            if IN_FORCE in headers:
                in_force.update(json.loads(headers[IN_FORCE]))
            done()

        receipt_id = self._answers.asked_of_hub(answered)
        self._credit_asked[receipt_id] = hub
        return receipt_id

    def _credit_is_set(self, run: SendRun, in_force: dict[str, object]) -> None:
        """Answer a request about credit that is in force at all hubs."""
        near = self._near
        if run.head.reply_to is not None:
            body = json.dumps(in_force).encode()
            head = run.head.for_answer(run.head.reply_to, len(body))
            wire = head.block + b"\n\n" + body + b"\0"
            try:
                self._send(SendRun(head, [wire] * len(run.wires), len(wire) * len(run.wires), None))
                near.flush()
            except ProtocolError as error:
                near.fail(about_send(error, run))
                return
        for receipt_id in run.receipts or ():
            near.replies.receipt(receipt_id)

    # ------------------------------------------------------------------ homes that are lost and found

    @property
    def _orphan_keys(self) -> set[str]:
        return {orphan.key for orphan in self._orphans}

    def look(self) -> None:
        """Make what has a home now, and wildcards at hubs that have joined. Raises ProtocolError."""
        orphans, self._orphans = self._orphans, []
        for orphan in orphans:
            if orphan.key in self._live:
                self._subscribe_again(orphan)
        self._cover_new_hubs()

    def change_over(self) -> None:
        """Make subscriptions to topics where they belong now: a hub has come or gone that can't tell its interest."""
        waiting = self._orphan_keys
        for key, frame in [*self._here.items(), *((key, sub.frame) for key, sub in self._live.items())]:
            destination = frame.headers["destination"]
            if TOPIC not in destination:
                continue
            heard = self._routes.heard(frame.headers)
            for name in heard:
                self._topics.add(name)
            self._hear_no_more(key)
            if heard:
                self._heard[key] = heard
            if key in waiting:
                continue
            legs = self._routes.hearing(frame.headers) or ((HERE, destination),)
            sub = self._live.get(key)
            hubs = {HERE} if sub is None else sub.hubs
            if {hub for hub, _names in legs} == hubs:
                continue
            if HERE in hubs:
                self._near.give_back(key)
            for hub in hubs:
                far = self._flows.at(hub)
                if far is not None and far.subs.pop(key, None) is not None:
                    far.send_frame(_end_of(frame), self._near.version)
            self._here.pop(key, None)
            self._live[key] = Subscribed(frame, set(), covers_all=is_pattern(destination))
            self._orphans.append(_Orphan(key, frame, None))

    def lost(self, far: Far) -> None:
        """Have what was at a hub look for another home: its flow is lost. Credit is in force when it is made again."""
        for receipt_id in [each for each, hub in self._credit_asked.items() if hub == far.hub]:
            if (answered := self._answers.take_question_back(receipt_id)) is not None:
                answered({})
        for key, frame in far.subs.items():
            self._live[key].hubs.discard(far.hub)
            made = None
            waiting = far.asked.pop(key, None)
            if waiting is not None:
                frame = Frame("SUBSCRIBE", {**frame.headers, "receipt": waiting})
                made = self._answers.take_back(waiting)
                if made is not None:
                    frame.headers.pop("receipt")
            self._orphans.append(_Orphan(key, frame, made))

    def place_lost(self, far: Far) -> str | None:
        """Return the destination of a subscription whose place is lost with a flow: made again it would begin again,
        unmarked. None: there is none.
        """
        for key, frame in far.subs.items():
            if key not in far.asked and _has_place(frame.headers):
                return frame.headers["destination"]
        return None

    def forget_orphans(self) -> None:
        """Make no subscription any more that waits for a home: the client leaves."""
        self._orphans.clear()

    def can_let_go(self, shard: int) -> bool:
        """Return whether all that this client has in a shard of this hub can be made again elsewhere: not the place of
        a reader of a log, and not what a browser has seen.
        """
        for key, frame in self._found_in(shard):
            headers = frame.headers
            if key in self._live and len(self._live[key].hubs) > 1:
                return False
            if _has_place(headers):
                return False
        return True

    def let_go(self, shard: int) -> None:
        """Have subscriptions to a shard of this hub look for another home: it leaves."""
        for key, frame in list(self._found_in(shard)):
            self._here.pop(key, None)
            self._near.give_back(key)
            self._live[key] = Subscribed(frame, set(), covers_all=False)
            self._orphans.append(_Orphan(key, frame, None))

    def close(self) -> None:
        """Forget all: the connection is gone."""
        self._live.clear()
        self._here.clear()
        for key in list(self._heard):
            self._hear_no_more(key)
        self._orphans.clear()

    def are_at(self, hub: str) -> bool:
        """Return whether a hub has a part of a live subscription."""
        return (hub == HERE and bool(self._here)) or any(hub in sub.hubs for sub in self._live.values())

    def _found_in(self, shard: int) -> Iterator[tuple[str, Frame]]:
        """Yield the subscriptions to destinations of a shard of this hub, but for wildcards."""
        at_this_hub = {key: sub.frame for key, sub in self._live.items() if HERE in sub.hubs and not sub.covers_all}
        for key, frame in (*self._here.items(), *at_this_hub.items()):
            if self._is_in(frame.headers["destination"], shard):
                yield key, frame

    def _is_in(self, destination: str, shard: int) -> bool:
        shard_of = self._near.hub.shard_of
        try:
            named = [address.canonical for address in parse_composite(destination) if not address.is_temporary]
        except DestinationNameError:
            return False  # its ERROR is being made
        return shard_of is not None and any(shard_of(name) == shard for name in named)

    def _subscribe_again(self, orphan: _Orphan) -> None:
        made = orphan.made
        headers = orphan.frame.headers
        legs: Legs = self._routes.hearing(headers) or ((HERE, headers["destination"]),)
        sub = self._live[orphan.key]
        if sub.covers_all:
            # Only the part that was lost: the others are where they were.
            legs = tuple((hub, name) for hub, name in legs if hub not in sub.hubs)
            if not legs and made is not None:
                made()
        if legs:
            if made is not None and len(legs) > 1:
                made = Latch(len(legs), made)
            self._subscribe_at(orphan.key, orphan.frame, legs, made)

    def _cover_new_hubs(self) -> None:
        """Make subscriptions to wildcards at hubs that have joined."""
        waiting = self._orphan_keys
        for key, sub in self._live.items():
            if sub.covers_all and key not in waiting:
                legs = self._routes.hearing(sub.frame.headers) or ()
                new = tuple((hub, name) for hub, name in legs if hub not in sub.hubs)
                if new:
                    self._subscribe_at(key, Frame("SUBSCRIBE", {**sub.frame.headers}), new, None)


def _has_place(headers: dict[str, str]) -> bool:
    """Return whether a subscription has read up to a place that no hub keeps: a browser, a reader of a log alone."""
    return wants_to_browse(headers) or (headers["destination"].startswith(LOG_PREFIX) and "group" not in headers)


def _without_receipt(frame: Frame) -> Frame:
    return Frame(frame.command, {name: value for name, value in frame.headers.items() if name != "receipt"})


def _changed(subscribe: Frame, change: CreditChange) -> Frame:
    """Return the SUBSCRIBE with another credit."""
    return Frame("SUBSCRIBE", change.applied_to(subscribe.headers))


def _end_of(subscribe: Frame) -> Frame:
    """Return the UNSUBSCRIBE of a subscription."""
    headers = subscribe.headers
    name = "id" if "id" in headers else "destination"
    return Frame("UNSUBSCRIBE", {name: headers[name]})
