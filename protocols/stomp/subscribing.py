"""SUBSCRIBE, UNSUBSCRIBE, ACK and NACK of one connection.

A subscription is *live* between SUBSCRIBE and UNSUBSCRIBE, which requeues its unacknowledged deliveries; it is *known*
until no transaction holds any of them (b35). The id in an ACK is looked up among the known ones. An unknown id is an
ERROR, the id of a settled delivery is ignored (b43). Checklist b31-b43.

A run of ACKs in one read has the effect of the same ACKs one by one, however the network cut them: those before a wrong
one are in force.

Bounds: `subscriptions_max` known ones; `transaction_acks_max` deliveries of each that transactions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, repeat
from typing import cast

from ...flow.latch import Latch
from ...flow.upkeep import UPKEEP_FULL, UPKEEP_REMEDY
from ...flow.words import part_in_words
from ...queues.durables import Durable, DurableNameError
from ...queues.logs.partitions import LogPartitions
from ...queues.logs.positions import Position
from ...queues.logs.table import PREFIX as LOG_PREFIX
from ...queues.logs.table import LogError, check_name
from ...queues.names import (
    DestinationName,
    DestinationNameError,
    Kind,
    check_pattern,
    is_one_queue,
    parse,
    parse_composite,
)
from ...queues.registry import DestinationLimitError, WildcardConsumer
from ...queues.retained import Gathering, is_retained, topic_of
from ...queues.selectors import Selection
from ...queues.steps import Waiting
from ...queues.storage import Confirms
from ..outbound import Outbound
from ..reading import ReadGate
from .acks import is_for_good
from .attaching import DURABLE_ERRORS, Attaching, durable_error
from .authorization import Action, Authorizer, ForbiddenError
from .browsing import BrowsingSubscription, browsable, wants_to_browse
from .delivery import SessionTotals, StompSubscription
from .errors import ProtocolError
from .frames import AckRun, Frame
from .hub import Hub
from .implicit import ImplicitSubscriptions
from .late import GivenBack
from .ledger import SEEK_CHUNKS, Portion
from .limits import StompLimits
from .logreading import LogSubscription, LogWishes, log_wishes, time_wished
from .named import NamedDeliveries
from .partitionreading import PartitionsSubscription, ReadingMeans, check_wishes
from .replies import Replies
from .routing import ADMIN_PREFIX
from .settling import GROUPS_AT_ONCE, hold, holding, is_much, settle, settling, steps_of
from .subscribe_headers import (
    ACK_AUTO,
    FOUND,
    IF_ANY,
    ORDERED_ONLY,
    PAUSED,
    SubscriptionSpec,
    credit_change_of,
    declared_by,
    durable_name_of,
    prefetch_of,
    rank_of,
    selecting,
    unknown_durable,
)
from .temporary import REPLY_QUEUES, TemporaryDestinations
from .transactions import Transactions


class Subscriptions:
    """The subscriptions of one connection."""

    __slots__ = (
        "_authorizer",
        "_by_key",
        "_given_back",
        "_hub",
        "_limits",
        "_named",
        "_outbound",
        "_replies",
        "_temporary",
        "_totals",
        "_transactions",
        "client_id",
        "fail",
        "implicit",
        "live",
        "name",
        "work",
    )

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        outbound: Outbound,
        temporary: TemporaryDestinations,
        transactions: Transactions,
        replies: Replies,
        totals: SessionTotals,
        authorizer: Authorizer,
        *,
        name: str,
        fail: Callable[[ProtocolError], None],
        wake: Callable[[], None],
        reading: ReadGate,
    ) -> None:
        """Make the subscriptions of a connection. `name`: the connection, for people; `fail`: end it with this error,
        found while no frame of it is read; `wake`: let its turn come soon; `reading`: whether it is read.
        """
        self.fail = fail
        self.work = Attaching(hub.registry, replies, limits.attachments_max, reading, fail=fail, wake=wake)
        """Work that is done in steps."""
        self.live: dict[str, StompSubscription] = {}
        self.implicit = ImplicitSubscriptions(hub.scheduling, temporary.has_consumer, self._subscribe_to_replies)
        temporary.on_reply_to = self._await_reply
        self.client_id = ""
        """Client id of CONNECT, and its user; durable subscriptions belong to it."""
        self._authorizer = authorizer
        self._named = NamedDeliveries(self.live, hub.message_token)
        self._by_key = self._named.known
        self._given_back = GivenBack()
        self._hub = hub
        self._limits = limits
        self._outbound = outbound
        self._temporary = temporary
        self._transactions = transactions
        self._replies = replies
        self._totals = totals
        self.name = name

    @property
    def known(self) -> Iterable[StompSubscription]:
        """All subscriptions with unacknowledged deliveries."""
        return self._by_key.values()

    @property
    def unsettled_count(self) -> int:
        """Deliveries that are not settled."""
        return sum(s.ledger.unsettled_count for s in self._by_key.values() if s.ledger is not None)

    def detach_all(self) -> None:
        """End all deliveries; unacknowledged ones stay. At once if there are few subscriptions, else in steps."""
        ending = list(self.live.values())
        self.live.clear()
        self.implicit.close()
        self.work.ended = True
        self.work.detach(ending)

    def unsettled_of(self, queues: Container[object]) -> int:
        """Return the number of deliveries of these queues that the connection has not acknowledged. O(known
        subscriptions).
        """
        return sum(s.unsettled_of(queues) for s in self._by_key.values())

    def note_worked_on(self) -> None:
        """Note the deliveries that consumers of a broken connection were working on: they have failed. Those that are
        not found right away are searched for when the subscriptions are detached, or by `noting_worked_on`.
        """
        looks_left = SEEK_CHUNKS
        for subscription in self._by_key.values():
            if subscription.ledger is not None:
                looks_left -= subscription.ledger.note_worked_on(looks_left)

    def noting_worked_on(self) -> Iterator[None]:
        """Note the same for subscriptions that ended before. In steps."""
        self.note_worked_on()
        for place, subscription in enumerate(list(self._by_key.values()), 1):
            if subscription.ledger is not None:
                yield from subscription.ledger.seeking_worked_on()
            if place % 32 == 0:
                yield

    def returning_unsettled(self) -> Iterator[None]:
        """Requeue everything after the end of the connection, in steps."""
        while self._by_key:
            _key, subscription = self._by_key.popitem()
            yield from subscription.returning_unsettled()
            subscription.close()
            yield

    def forget_settled(self) -> None:
        """Look for subscriptions that ended and are settled by now."""
        for subscription in list(self._by_key.values()):
            if subscription.unsubscribed:
                self.forget_if_settled(subscription)

    def subscribe(self, frame: Frame) -> None:
        """Make a subscription. One with a selector is made behind that, which is made in steps; one to a log from a
        time behind the look for it.
        """
        text, place = frame.headers.get("selector"), time_wished(frame.headers)
        if text is None and place is None:
            self._subscribe(frame, None)
        else:
            self.work.do(self._subscribing(frame, text, place))

    def _subscribing(self, frame: Frame, text: str | None, place: Position | None) -> Iterator[Waiting | None]:
        selection: Selection | None = None
        try:
            if text is not None:
                selection = yield from selecting(text, self._hub)
            if place is not None and self._hub.logs is not None:
                yield from self._hub.logs.locating(frame.headers["destination"], place)
            if not self.work.ended:
                self._subscribe(frame, selection)
                return
        except ProtocolError as error:
            error.identify(frame.command, frame.headers)
            self.fail(error)
        if selection is not None:
            selection.close()

    def _subscribe(self, frame: Frame, selection: Selection | None, *, is_implicit: bool = False) -> None:
        headers = frame.headers
        if len(self._by_key) >= self._limits.subscriptions_max:
            raise ProtocolError(
                "too-many-subscriptions",
                f"more than {self._limits.subscriptions_max} subscriptions on one connection "
                f"({len(self._by_key) - len(self.live)} of them ended with messages in open transactions)",
                "COMMIT or ABORT, use wildcards or more connections, or raise subscriptions_max of the listener.",
            )
        name = headers["destination"]
        if name in self.implicit.made and not is_implicit:
            self.implicit.made.discard(name)
            self._end_implicit(name)
        subscription_id = headers.get("id")
        table_key = subscription_id if subscription_id is not None else f"destination {name}"
        if table_key in self.live:
            raise ProtocolError(
                "subscription-exists",
                f"subscription {subscription_id if subscription_id is not None else name!r} is live already",
                "Give each subscription of a connection its own id, and UNSUBSCRIBE before you reuse it.",
            )
        why_not = self._hub.manager.why_not(f"the subscription {table_key[:80]!r}")
        if why_not:
            raise ProtocolError(UPKEEP_FULL, why_not, UPKEEP_REMEDY)
        if name.startswith(LOG_PREFIX):
            self._subscribe_log(frame, name, subscription_id, table_key, selection)
            return
        browses = wants_to_browse(headers)
        try:
            addresses = self._addresses_to_subscribe(name)
            if not browses:
                _check_not_retained(addresses)
            if browses:
                addresses = [browsable(name, addresses)]
            self._authorizer.check(Action.BROWSE if browses else Action.RECEIVE, addresses)
            for address in addresses:
                self._hub.registry.check_prefix(address, to_send=False)
            kind = BrowsingSubscription if browses else StompSubscription
            declared = None if browses or not is_one_queue(name) else declared_by(headers)
            if declared is not None:
                self._authorizer.check(Action.CREATE, addresses)
            subscription = self._make_subscription(frame, addresses[0], subscription_id, kind)
        except DestinationNameError as error:
            raise ProtocolError("bad-destination", str(error)) from None
        except DestinationLimitError as error:
            raise ProtocolError(error.code, str(error)) from None
        subscription.selection = selection
        self.live[table_key] = subscription
        self._named.add(subscription)
        self._hub.subscribed(name, headers)
        if isinstance(subscription, BrowsingSubscription):
            subscription.browse(addresses[0])
            self._replies.receipt(headers.get("receipt"))
            return
        exclusive = "true" in (headers.get("exclusive"), headers.get("activemq.exclusive"))
        durable_name = durable_name_of(headers, name)
        if durable_name is not None:
            self._attach_durable(subscription, addresses, durable_name, headers)
            return
        admits = self._admits(subscription)
        self.work.do(
            self.work.attaching(
                subscription, addresses, exclusive=exclusive, admits=admits, headers=headers, declared=declared
            )
        )

    def _await_reply(self, name: str) -> None:
        if name.startswith(REPLY_QUEUES) and not self.work.ended:
            self.implicit.await_reply(name)

    def _subscribe_to_replies(self, name: str) -> None:
        """Subscribe to the queue of a reply-to, for a client that does not do so itself (implicit.py)."""
        if name in self.live:
            return  # an id that the client has given to something else
        try:
            self._subscribe(Frame("SUBSCRIBE", {"id": name, "destination": name}), None, is_implicit=True)
        except ProtocolError as error:
            error.identify("SUBSCRIBE", {"destination": name})
            self.fail(error)

    def _end_implicit(self, name: str) -> None:
        subscription = self.live.get(name)
        if subscription is not None and subscription.destination == name:
            del self.live[name]
            self.work.do(self._ending(subscription, None))

    def _subscribe_log(
        self,
        frame: Frame,
        name: str,
        subscription_id: str | None,
        table_key: str,
        selection: Selection | None,
    ) -> None:
        headers = frame.headers
        logs = self._hub.logs
        if logs is None:
            raise ProtocolError("no-logs", "this broker keeps no logs", "Give it a data folder (data_dir of [broker]).")
        wishes = log_wishes(headers)
        try:
            check_name(name)  # no composites, no wildcards
            address = self._temporary.in_host(parse_composite(name)[0])
            self._authorizer.check(Action.RECEIVE, [address])
            partitions = logs.partitions_of(name)
            if partitions is not None:
                self._subscribe_partitions(frame, address, subscription_id, table_key, selection, partitions, wishes)
                return
            subscription = self._make_subscription(frame, address, subscription_id, LogSubscription)
        except (DestinationNameError, LogError) as error:
            raise ProtocolError("bad-destination", str(error)) from None
        assert isinstance(subscription, LogSubscription)
        subscription.selection = selection
        told: dict[str, str] = {}
        receipt_id = headers.get("receipt")
        answer = self._replies.later(receipt_id, told)
        begin = _nothing if receipt_id is None else subscription.hold()

        def done(error: Exception | None) -> None:
            if error is not None:
                self.fail(
                    ProtocolError("group-not-stored", f"group {wishes.group!r} can't be stored: {error}", "Try again.")
                )
            answer()  # behind an ERROR nothing goes out
            begin()

        try:
            subscription.read(address, wishes, fail=self.fail, told=told, done=done)
        except LogError as error:
            subscription.close()
            raise ProtocolError(error.code, str(error)) from None
        self.live[table_key] = subscription
        self._named.add(subscription)

    def _subscribe_partitions(
        self,
        frame: Frame,
        address: DestinationName,
        subscription_id: str | None,
        table_key: str,
        selection: Selection | None,
        partitions: LogPartitions,
        wishes: LogWishes,
    ) -> None:
        headers = frame.headers
        if len(self._by_key) + partitions.count >= self._limits.subscriptions_max:
            raise ProtocolError(
                "too-many-subscriptions",
                f"{len(self._by_key)} subscriptions and {partitions.count} partitions of {partitions.name} on one "
                f"connection: {self._limits.subscriptions_max} at most",
                "SUBSCRIBE to partitions by name, use more connections, or raise subscriptions_max of the listener.",
            )
        check_wishes(wishes, partitions)
        subscription = self._make_subscription(frame, address, subscription_id, PartitionsSubscription)
        assert isinstance(subscription, PartitionsSubscription)
        subscription.selection = selection
        subscription.read(
            partitions,
            wishes,
            ReadingMeans(self._take_key, self._named.add, self.forget_if_settled, self.work.do_later),
        )
        self.live[table_key] = subscription
        self._named.add(subscription)
        self.work.do(self._reading_partitions(subscription, headers, self._replies.later(headers.get("receipt"))))

    def _reading_partitions(
        self, subscription: PartitionsSubscription, headers: dict[str, str], answer: Callable[[], None]
    ) -> Iterator[object]:
        def done(error: Exception | None) -> None:
            if error is not None:
                self.fail(
                    ProtocolError(
                        "group-not-stored", f"group {headers.get('group')!r} can't be stored: {error}", "Try again."
                    )
                )
            answer()  # behind an ERROR nothing goes out

        try:
            yield from subscription.beginning(done)
        except LogError as error:
            refusal = ProtocolError(error.code, str(error))
        except ProtocolError as error:
            refusal = error
        else:
            return
        refusal.identify("SUBSCRIBE", headers)
        self.fail(refusal)

    def _take_key(self) -> int:
        """Return a key for one more subscription."""
        key = self._named.next_key
        self._named.next_key += 1
        return key

    def _admits(self, subscription: StompSubscription) -> Callable[[str], bool] | None:
        """Return a test for destinations under the wildcard of a subscription that it may receive from; None: all."""
        authorizer, policy_for = self._authorizer, self._hub.registry.policy_for
        allows_everything = authorizer.guard.allows_everything
        if subscription.ordered_only:
            return lambda name: (
                not policy_for(parse(name)).goes_direct and (allows_everything or authorizer.may(Action.RECEIVE, name))
            )
        return None if allows_everything else lambda name: authorizer.may(Action.RECEIVE, name)

    def review(self) -> None:
        """Permissions have changed: wildcards cover other destinations now. Raises ProtocolError for a subscription
        that is not allowed any more.
        """
        for subscription in self.live.values():
            addresses = [self._temporary.to_global(each) for each in parse_composite(subscription.destination)]
            action = Action.BROWSE if isinstance(subscription, BrowsingSubscription) else Action.RECEIVE
            for address in addresses:
                may_stay = address.temporary_global or self._authorizer.may(action, address.canonical)
                if not may_stay:
                    error = self._authorizer.refusal(ForbiddenError(action, address.canonical))
                    error.identify("SUBSCRIBE", {"id": subscription.subscription_id or ""})
                    raise error
            for attachment in subscription.attachments:
                if isinstance(attachment, WildcardConsumer):
                    self.work.review(attachment, self._admits(subscription))

    def _attach_durable(
        self, subscription: StompSubscription, addresses: list[DestinationName], name: str, headers: dict[str, str]
    ) -> None:
        """Read as a durable subscription. Its RECEIPT says that the subscription is on disk: later messages are not
        missed.
        """
        address = addresses[0]
        if len(addresses) > 1 or not address.kind.is_topic or address.temporary_global:
            raise ProtocolError(
                "not-durable",
                f"a durable subscription is to one topic, not to {headers['destination']}",
                "Name one /topic/, or one wildcard; queues keep their messages without it.",
            )
        registry = self._hub.registry
        if address.wildcard:
            self._attach_durable_wildcard(subscription, address, name, headers)
            return
        gathering: Gathering | None = None
        if len(registry.retained) and registry.durables.find(self.client_id, name, address.canonical) is None:
            gathering = Gathering(registry.retained, registry)  # a subscription that was there has got it already
            gathering.attached(address.canonical)
        try:
            attachment = registry.attach_durable(
                address, subscription, self.client_id, name, subscription.selection, self.work.account
            )
        except DURABLE_ERRORS as error:
            raise durable_error(error) from None
        subscription.attachments.append(attachment)
        if gathering is not None:
            subscription.begin_with(gathering.all(), registry.environment, subscription.hold())
        receipt_id = headers.get("receipt")
        begin = _nothing if receipt_id is None else subscription.hold()  # as of all others, the RECEIPT comes first
        self._keep_durable(attachment.durable, receipt_id, begin)

    def _attach_durable_wildcard(
        self, subscription: StompSubscription, address: DestinationName, name: str, headers: dict[str, str]
    ) -> None:
        """Read as a durable subscription to all topics that match. It is attached to those that are there in steps."""
        registry = self._hub.registry
        gathering: Gathering | None = None
        if len(registry.retained) and registry.durables.find(self.client_id, name, address.canonical) is None:
            gathering = Gathering(registry.retained, registry)
        try:
            wildcard = registry.attach_durable_wildcard(
                address,
                subscription,
                self.client_id,
                name,
                admits=self._admits(subscription),
                selection=subscription.selection,
                account=self.work.account,
            )
        except DURABLE_ERRORS as error:
            raise durable_error(error) from None
        subscription.attachments.append(wildcard)
        self.work.do(
            self.work.attaching_durably(
                subscription,
                wildcard,
                gathering,
                headers,
                begin=subscription.hold(),
                keep=partial(self._keep_durable, wildcard.durable, headers.get("receipt")),
            )
        )

    def _keep_durable(self, durable: Durable, receipt_id: str | None, begin: Callable[[], None]) -> None:
        """Have a durable subscription written, answer when it is, and call `begin` then."""
        answer = self._replies.later(receipt_id)

        def all_done() -> None:
            answer()
            begin()

        one_done = Latch(2, all_done)

        def kept(error: Exception | None) -> None:
            if error is not None:
                self._fail_durable(durable, error)
            one_done()

        self._hub.registry.durables.keep(durable, kept)
        self._when_flushed(durable, receipt_id, one_done)

    def _when_flushed(self, durable: Durable, receipt_id: str | None, callback: Callable[[], None]) -> None:
        """Call back when all changes of a durable subscription so far are on disk; at once without a store, or without
        a receipt.
        """
        store = self._hub.registry.environment_of(parse(durable.destination)).store
        if receipt_id is None or store is None:
            callback()
        else:
            store.when_flushed([callback])

    def _fail_durable(self, durable: Durable, error: Exception) -> None:
        """End the connection, which lets go of all that is attached. A RECEIPT that follows is dropped."""
        self.fail(
            ProtocolError(
                "durable-not-stored", f"durable subscription {durable.label} can't be stored: {error}", "Try again."
            )
        )

    def _remove_durable(
        self, name: str, destination: str | None, receipt_id: str | None, *, if_any: bool = False
    ) -> None:
        """End a durable subscription, at its UNSUBSCRIBE. `if_any`: the RECEIPT says whether it was here."""
        registry = self._hub.registry
        try:
            topic = None if destination is None else self._temporary.in_host_of_all(destination)[0].canonical
            durable = registry.durables.find(self.client_id, name, topic)
        except (DestinationNameError, DurableNameError) as error:
            raise ProtocolError("bad-destination", str(error)) from None
        if durable is None and if_any:
            self._replies.later(receipt_id, {FOUND: "false"})()
            return
        if durable is None:
            raise unknown_durable(name, self.client_id)
        if durable.attached:
            raise ProtocolError(
                "durable-in-use",
                f"durable subscription {durable.label} has a consumer",
                "UNSUBSCRIBE that one first.",
            )
        answer = self._replies.later(receipt_id)

        def removed(error: Exception | None) -> None:
            if error is not None:
                self._fail_durable(durable, error)
            self._when_flushed(durable, receipt_id, answer)

        registry.remove_durable(durable, removed)

    def _addresses_to_subscribe(self, name: str) -> list[DestinationName]:
        addresses = []
        for address in parse_composite(name):
            if address.temporary_global and not self._temporary.owns(self._temporary.in_host(address)):
                raise DestinationNameError(
                    f"{address.canonical} is a temporary destination of another connection: only its owner can "
                    f"subscribe"
                )
            if address.kind is Kind.LOG:
                raise DestinationNameError(f"{address.canonical} is a log: SUBSCRIBE to it by itself")
            if address.canonical.startswith(ADMIN_PREFIX):
                raise DestinationNameError(f"{address.canonical} takes requests only: SEND to it with a reply-to")
            check_pattern(address.canonical)
            addresses.append(self._temporary.to_global(address))
        return addresses

    def _make_subscription(
        self, frame: Frame, address: DestinationName, subscription_id: str | None, kind: type[StompSubscription]
    ) -> StompSubscription:
        headers = frame.headers
        policy = self._hub.registry.policy_for(address)
        prefetch_count, prefetch_bytes = prefetch_of(
            headers, policy.prefetch_count, policy.prefetch_bytes, asked_bytes_max=self._limits.credit_bytes_max
        )
        key = self._take_key()
        who = subscription_id if subscription_id is not None else headers["destination"]
        spec = SubscriptionSpec(
            key=key,
            subscription_id=subscription_id,
            label=part_in_words(who, self.name),
            destination=headers["destination"],
            ack=headers.get("ack", ACK_AUTO),
            version=self._replies.version,
            prefetch_count=prefetch_count,
            prefetch_bytes=prefetch_bytes,
            rank=rank_of(headers),
            ordered_only=ORDERED_ONLY in headers and bool(self._hub.ack_prefix) and address.kind.is_topic,
        )
        subscription = kind(self._hub, self._outbound, spec, self._totals)
        subscription.given_back = self._given_back
        subscription.give_up = self.fail
        if headers.get(PAUSED) == "true":
            subscription.pause()
        return subscription

    def set_credit(self, headers: Mapping[str, str]) -> dict[str, object]:
        """Pause or resume a live subscription, or change its credit, as a request says. Returns what is in force then.
        Raises ProtocolError with nothing changed.
        """
        subscription_id = headers.get("id")
        if subscription_id is None:
            raise ProtocolError(
                "missing-header",
                "a request about credit without the id of a subscription",
                "Name a live subscription of this connection in the header id.",
            )
        live = self.live
        subscription = live.get(subscription_id) or live.get(f"destination {subscription_id}")
        if subscription is None:
            raise ProtocolError(
                "unknown-subscription",
                f"no live subscription {subscription_id[:200]!r}",
                "The header id must name what SUBSCRIBE named.",
            )
        change = credit_change_of(headers, asked_bytes_max=self._limits.credit_bytes_max)
        if change.is_paused:
            subscription.pause()
        if change.count is not None:
            subscription.set_credit(change.count, change.size_bytes)
        if change.is_paused is False:
            subscription.resume()
        count, size_bytes = subscription.window_limits
        return {
            "id": subscription_id,
            "paused": subscription.is_paused,
            "credit_count": count,
            "credit_bytes": size_bytes,
        }

    def unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        subscription_id = headers.get("id")
        name = headers.get("destination")
        table_key = subscription_id if subscription_id is not None else f"destination {name}"
        if subscription_id is None and table_key not in self.live:
            # 1.0 may name the destination of a subscription that gave an id (b34), if that tells which one is meant.
            with_id = [key for key, subscription in self.live.items() if subscription.destination == name]
            if len(with_id) == 1:
                table_key = with_id[0]
        subscription = self.live.pop(table_key, None)
        durable_name = durable_name_of(headers, name if subscription is None else subscription.destination)
        if durable_name is not None:
            if subscription is None:
                if_any = IF_ANY in headers and bool(self._hub.ack_prefix)
                self._remove_durable(durable_name, name, headers.get("receipt"), if_any=if_any)
            else:
                self.work.do(self._ending_for_good(subscription, durable_name, headers.get("receipt")))
            return
        if subscription is None:
            raise ProtocolError(
                "unknown-subscription",
                f"no live subscription {subscription_id if subscription_id is not None else name!r}",
                "UNSUBSCRIBE must name what SUBSCRIBE named.",
            )
        self.work.do(self._ending(subscription, headers.get("receipt")))

    def _ending(self, subscription: StompSubscription, receipt_id: str | None) -> Iterator[None]:
        yield from subscription.detaching()
        yield from subscription.leaving()
        self.forget_if_settled(subscription)
        self._replies.receipt(receipt_id)

    def give_back(self, table_key: str) -> None:
        """End a subscription of which the client knows nothing: its shard leaves this hub. In steps."""
        subscription = self.live.pop(table_key, None)
        if subscription is not None:
            self.work.do_later(self._ending(subscription, None))

    def _ending_for_good(
        self, subscription: StompSubscription, durable_name: str, receipt_id: str | None
    ) -> Iterator[None]:
        yield from self._ending(subscription, None)
        try:
            self._remove_durable(durable_name, subscription.destination, receipt_id)
        except ProtocolError as error:
            self.fail(error)

    def forget_if_settled(self, subscription: StompSubscription) -> None:
        """Forget a subscription that ended and has no unacknowledged deliveries."""
        if (
            not subscription.unsubscribed
            or subscription.attachments
            or (subscription.ledger is not None and subscription.ledger.unsettled_count)
        ):
            return
        if self._by_key.pop(subscription.key, None) is not None:
            subscription.close()

    # ------------------------------------------------------------------ ACK and NACK

    def ack_run(self, run: AckRun) -> None:
        deliveries = self._named.of(run.tokens)
        for count, (subscription, ordinals) in enumerate(deliveries):
            if count == GROUPS_AT_ONCE or not ordinals or is_much(subscription, ordinals, nack=run.nack):
                rest = chain([(subscription, ordinals)], deliveries)
                self.work.do(self._settling_each(rest, nack=run.nack))
                return
            for portion in self._settle(subscription, ordinals, nack=run.nack):
                if portion.subscription.queue.storage is not None:
                    self._replies.unconfirmed = True

    def _settling_each(
        self, deliveries: Iterable[tuple[StompSubscription, list[int]]], *, nack: bool
    ) -> Iterator[None]:
        try:
            for subscription, ordinals in deliveries:
                yield from repeat(None, 0 if ordinals else self._looking_steps)
                if (yield from self._settling(subscription, ordinals, nack=nack)):
                    self._replies.unconfirmed = True
        except ProtocolError as error:
            self.fail(error)

    def _settling(
        self, subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False
    ) -> Generator[None, None, set[Confirms] | None]:
        """Settle the deliveries, in steps. Returns the storages of the changes; None: there are none."""
        awaited: set[Confirms] = set()
        changed = False
        if ordinals and subscription.ledger is not None:
            for portions in settling(subscription, ordinals, nack=nack, for_good=for_good):
                awaited.update(_stored_sides_of(portions))
                changed |= bool(portions)
                yield from steps_of(portions, nack=nack)
        if subscription.unsubscribed:
            self.forget_if_settled(subscription)
        return awaited if changed else None

    def ack_frame(self, frame: Frame) -> None:
        headers = frame.headers
        tokens: list[bytes] | list[tuple[bytes | None, bytes]]
        if self._replies.version == "1.2":
            tokens = [headers["id"].encode()]
        else:
            subscription_id = headers.get("subscription")
            tokens = [(None if subscription_id is None else subscription_id.encode(), headers["message-id"].encode())]
        transaction = headers.get("transaction")
        if transaction is not None:
            self._transactions.get(transaction)
        nack = frame.command == "NACK"
        for_good = nack and is_for_good(headers)
        touched: list[Portion] = []
        held: list[Portion] = []
        deliveries = self._named.of(tokens)
        for subscription, ordinals in deliveries:
            if not ordinals or is_much(subscription, ordinals, nack=nack, for_good=for_good):
                rest = chain([(subscription, ordinals)], deliveries)
                self.work.do(self._ack_in_steps(frame, tokens[0], rest))
                return
            if transaction is None:
                touched += self._settle(subscription, ordinals, nack=nack, for_good=for_good)
            else:
                held = hold(subscription, ordinals, nack=nack, for_good=for_good)
                self._keep(transaction, subscription, held, nack=nack)
        receipt_id = headers.get("receipt")
        if not touched and not held and not (receipt_id is transaction is None):
            self._check_not_left(tokens[0])
        self._acked(receipt_id, _stored_sides_of(touched), changed=bool(touched) or transaction is not None)

    def _ack_in_steps(
        self,
        frame: Frame,
        token: bytes | tuple[bytes | None, bytes],
        deliveries: Iterable[tuple[StompSubscription, list[int]]],
    ) -> Iterator[None]:
        nack, transaction = frame.command == "NACK", frame.headers.get("transaction")
        for_good = nack and is_for_good(frame.headers)
        receipt_id = frame.headers.get("receipt")
        awaited: set[Confirms] = set()
        changed = False
        try:
            for subscription, ordinals in deliveries:
                if not ordinals or subscription.ledger is None:
                    yield from repeat(None, self._looking_steps)
                    continue
                if transaction is None:
                    where = yield from self._settling(subscription, ordinals, nack=nack, for_good=for_good)
                    awaited, changed = awaited | (where or set()), changed or where is not None
                else:
                    for portions in holding(subscription, ordinals, nack=nack, for_good=for_good):
                        self._keep(transaction, subscription, portions, nack=nack)
                        changed |= bool(portions)
                        yield from steps_of(portions)
            if not changed and not (receipt_id is transaction is None):
                self._check_not_left(token)
        except ProtocolError as error:
            error.identify(frame.command, frame.headers)
            self.fail(error)
            return
        self._acked(receipt_id, awaited, changed=changed or transaction is not None)

    @property
    def _looking_steps(self) -> int:
        """Steps of looking for a message in all known subscriptions."""
        return 1 + len(self._by_key) // 32

    def _acked(self, receipt_id: str | None, awaited: set[Confirms], *, changed: bool) -> None:
        """Answer an ACK or NACK that is done."""
        if receipt_id is None:
            return
        store = self._hub.store
        if changed or store is None or self._replies.is_confirmed:
            self._replies.receipt_after(receipt_id, awaited)
        else:
            # Settled before, by an ACK whose work may not be on disk: which one is not recorded.
            self._replies.receipt_when_all_saved(receipt_id, store)

    def _check_not_left(self, token: bytes | tuple[bytes | None, bytes]) -> None:
        """Check an ACK with a receipt or in a transaction that has found nothing to settle. It did not settle
        deliveries that its subscription requeued at its end, so a RECEIPT would lie. Raises ProtocolError.
        """
        if self._given_back.has(token, self._by_key):
            name = token if isinstance(token, bytes) else token[1]
            raise ProtocolError(
                "unknown-delivery",
                f"{name[:80].decode('utf-8', 'replace')!r} is not with this connection: its subscription has ended",
                "UNSUBSCRIBE requeues unacknowledged messages. Send ACKs and NACKs before it.",
            )

    def _settle(
        self, subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False
    ) -> list[Portion]:
        """Returns what changed."""
        portions = settle(subscription, ordinals, nack=nack, for_good=for_good)
        if subscription.unsubscribed:
            self.forget_if_settled(subscription)
        return portions

    def _keep(self, transaction: str, subscription: StompSubscription, portions: list[Portion], *, nack: bool) -> None:
        """Keep held portions until COMMIT. Raises ProtocolError if transactions hold too much."""
        self._transactions.add_acks(transaction, subscription, portions, nack=nack)
        ledger = subscription.ledger
        if ledger is not None and ledger.held_count > self._limits.transaction_acks_max:
            raise ProtocolError(
                "transaction-too-large",
                f"open transactions hold more than {self._limits.transaction_acks_max} acknowledged messages of "
                f"subscription {subscription.name}",
                "COMMIT more often, or raise transaction_acks_max of the listener.",
            )


def _check_not_retained(addresses: Iterable[DestinationName]) -> None:
    """Raise DestinationNameError for the queues of retained messages: they can be looked at."""
    for address in addresses:
        if is_retained(address.canonical):
            raise DestinationNameError(
                f"{address.canonical} holds what is retained for {topic_of(address.canonical)}: subscribe to that, or "
                "look with browser:true"
            )


def _stored_sides_of(portions: Iterable[Portion]) -> set[Confirms]:
    awaited = {portion.subscription.queue.storage for portion in portions}
    return cast("set[Confirms]", awaited - {None})


def _nothing() -> None:
    """Do nothing, in place of a later callback."""
