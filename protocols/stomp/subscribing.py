"""SUBSCRIBE, UNSUBSCRIBE, ACK and NACK of one connection.

A subscription is *live* between SUBSCRIBE and UNSUBSCRIBE; it is *known* until everything it was sent is settled,
because late ACKs count (b35). What an ACK names is looked up among the known ones. An id that was never given out is an
ERROR, one that was settled before is ignored (b43). Checklist b31-b43.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocols.outbound import Outbound
from protocols.stomp.delivery import ACK_AUTO, ACK_CLIENT, SessionTotals, StompSubscription
from protocols.stomp.errors import ProtocolError
from protocols.stomp.frames import AckRun, Frame
from protocols.stomp.head import whole_number
from protocols.stomp.hub import Hub
from protocols.stomp.ledger import Portion, UnknownDeliveryError
from protocols.stomp.limits import StompLimits
from protocols.stomp.replies import Replies
from protocols.stomp.sending import ADMIN_PREFIX
from protocols.stomp.temporary import TemporaryDestinations
from protocols.stomp.transactions import Transactions
from queues import Address, DestinationLimitError, DestinationNameError, parse_composite

_NOT_YET: Final = {
    "selector": "selectors",
    "durable": "durable subscriptions",
    "activemq.subscriptionName": "durable subscriptions",
    "browser": "browsing",
}


class Subscriptions:
    """The subscriptions of one connection."""

    __slots__ = (
        "_by_key",
        "_hub",
        "_limits",
        "_name",
        "_next_key",
        "_outbound",
        "_replies",
        "_temporary",
        "_totals",
        "_transactions",
        "live",
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
        *,
        name: str,
    ) -> None:
        """`name`: the connection, for people."""
        self.live: dict[str, StompSubscription] = {}
        self._by_key: dict[int, StompSubscription] = {}
        self._next_key = 1
        self._hub = hub
        self._limits = limits
        self._outbound = outbound
        self._temporary = temporary
        self._transactions = transactions
        self._replies = replies
        self._totals = totals
        self._name = name

    @property
    def unsettled_count(self) -> int:
        """Deliveries that are not settled."""
        return sum(s.ledger.unsettled_count for s in self._by_key.values() if s.ledger is not None)

    def detach_all(self) -> None:
        """No more deliveries; what is unsettled stays."""
        for subscription in self.live.values():
            subscription.detach()
        self.live.clear()

    def return_unsettled(self) -> None:
        """The connection is gone: everything goes back to its queues."""
        for subscription in self._by_key.values():
            subscription.return_unsettled()
            subscription.close()
        self._by_key.clear()

    def forget_settled(self) -> None:
        """Look for subscriptions that ended and are settled by now."""
        for subscription in list(self._by_key.values()):
            if subscription.unsubscribed:
                self.forget_if_settled(subscription)

    def subscribe(self, frame: Frame) -> None:
        headers = frame.headers
        for name, feature in _NOT_YET.items():
            if headers.get(name) not in (None, "false"):
                raise ProtocolError(
                    "not-supported", f"{feature} ({name}) are not available in this version", "Subscribe without it."
                )
        if len(self.live) >= self._limits.subscriptions_max:
            raise ProtocolError(
                "too-many-subscriptions",
                f"more than {self._limits.subscriptions_max} subscriptions on one connection",
                "Use wildcards or more connections, or raise subscriptions_max of the listener.",
            )
        name = headers["destination"]
        subscription_id = headers.get("id")
        table_key = subscription_id if subscription_id is not None else f"destination {name}"
        if table_key in self.live:
            raise ProtocolError(
                "subscription-exists",
                f"subscription {subscription_id if subscription_id is not None else name!r} is live already",
                "Give each subscription of a connection its own id, and UNSUBSCRIBE before you reuse it.",
            )
        try:
            addresses = self._addresses_to_subscribe(name)
            subscription = self._make_subscription(frame, addresses[0], subscription_id)
        except (DestinationNameError, DestinationLimitError) as error:
            raise ProtocolError("bad-destination", str(error)) from None
        self.live[table_key] = subscription
        self._by_key[subscription.key] = subscription
        exclusive = "true" in (headers.get("exclusive"), headers.get("activemq.exclusive"))
        try:
            for address in addresses:
                subscription.attachments.append(self._hub.registry.attach(address, subscription, exclusive=exclusive))
        except DestinationLimitError as error:
            raise ProtocolError("too-many-destinations", str(error)) from None
        self._replies.receipt(headers.get("receipt"))

    def _addresses_to_subscribe(self, name: str) -> list[Address]:
        addresses = []
        for address in parse_composite(name):
            if address.temporary_global and not self._temporary.owns(address):
                raise DestinationNameError(
                    f"{address.canonical} is a temporary destination of another connection: only its owner can "
                    f"subscribe"
                )
            if address.canonical.startswith(ADMIN_PREFIX):
                raise DestinationNameError(f"{address.canonical} takes requests only: SEND to it with a reply-to")
            addresses.append(self._temporary.to_global(address))
        return addresses

    def _make_subscription(self, frame: Frame, address: Address, subscription_id: str | None) -> StompSubscription:
        headers = frame.headers
        policy = self._hub.registry.policy_for(address)
        prefetch_count, prefetch_bytes = _prefetch(headers, policy.prefetch_count, policy.prefetch_bytes)
        key = self._next_key
        self._next_key += 1
        who = subscription_id if subscription_id is not None else headers["destination"]
        return StompSubscription(
            self._hub,
            self._outbound,
            key=key,
            subscription_id=subscription_id,
            label=f"{who} of {self._name}",
            destination=headers["destination"],
            ack=headers.get("ack", ACK_AUTO),
            version=self._replies.version,
            prefetch_count=prefetch_count,
            prefetch_bytes=prefetch_bytes,
            totals=self._totals,
        )

    def unsubscribe(self, frame: Frame) -> None:
        headers = frame.headers
        subscription_id = headers.get("id")
        name = headers.get("destination")
        table_key = subscription_id if subscription_id is not None else f"destination {name}"
        subscription = self.live.pop(table_key, None)
        if subscription is None:
            raise ProtocolError(
                "unknown-subscription",
                f"no live subscription {subscription_id if subscription_id is not None else name!r}",
                "UNSUBSCRIBE must name what SUBSCRIBE named.",
            )
        subscription.detach()
        self.forget_if_settled(subscription)
        self._replies.receipt(headers.get("receipt"))

    def forget_if_settled(self, subscription: StompSubscription) -> None:
        """A subscription that ended and has nothing unsettled is gone for good."""
        if not subscription.unsubscribed or (subscription.ledger is not None and subscription.ledger.unsettled_count):
            return
        if self._by_key.pop(subscription.key, None) is not None:
            subscription.close()

    # ------------------------------------------------------------------ ACK and NACK

    def ack_run(self, run: AckRun) -> None:
        for subscription, ordinals in self._deliveries(run.tokens):
            self._settle(subscription, ordinals, nack=run.nack, transaction=None)

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
        for subscription, ordinals in self._deliveries(tokens):
            self._settle(subscription, ordinals, nack=frame.command == "NACK", transaction=transaction)
        self._replies.receipt(headers.get("receipt"))

    def _settle(
        self, subscription: StompSubscription, ordinals: list[int], *, nack: bool, transaction: str | None
    ) -> None:
        ledger = subscription.ledger
        if ledger is None or not ordinals:
            return  # ack auto: nothing to settle, and clients that ACK all the same do no harm (b36)
        cumulative = subscription.ack == ACK_CLIENT
        try:
            portions: list[Portion]
            if transaction is not None:
                portions = ledger.hold(ordinals, through=cumulative)
                self._transactions.add_acks(transaction, subscription, portions, nack=nack)
                return
            portions = ledger.take_through(max(ordinals)) if cumulative else ledger.take(ordinals)
        except UnknownDeliveryError:
            raise _unknown_ack(f"{subscription.key}-{ordinals[-1]}") from None
        if nack:
            subscription.reject(portions)
        else:
            subscription.settle(portions)
        if subscription.unsubscribed:
            self.forget_if_settled(subscription)

    def _deliveries(
        self, tokens: list[bytes] | list[tuple[bytes | None, bytes]]
    ) -> Iterable[tuple[StompSubscription, list[int]]]:
        """Which deliveries these tokens name, in order, those of one subscription together where they follow each
        other.
        """
        first = tokens[0]
        if isinstance(first, bytes):
            return self._deliveries_by_ack(tokens)  # type: ignore[arg-type]
        return self._deliveries_by_message(tokens)  # type: ignore[arg-type]

    def _deliveries_by_ack(self, tokens: list[bytes]) -> Iterable[tuple[StompSubscription, list[int]]]:
        start = 0
        while start < len(tokens):
            key, dash, _ordinal = tokens[start].partition(b"-")
            subscription = self._by_key.get(int(key)) if dash and key.isdigit() and len(key) < 12 else None
            if subscription is None:
                if dash and key.isdigit() and len(key) < 12 and 0 < int(key) < self._next_key:
                    start += 1  # a subscription that is over and settled
                    continue
                raise _unknown_ack(tokens[start].decode("utf-8", "replace"))
            prefix = key + dash
            length = len(prefix)
            ordinals: list[int] = []
            while start < len(tokens) and tokens[start].startswith(prefix):
                digits = tokens[start][length:]
                if not digits.isdigit() or len(digits) > 18:
                    raise _unknown_ack(tokens[start].decode("utf-8", "replace"))
                ordinals.append(int(digits))
                start += 1
            yield subscription, ordinals

    def _deliveries_by_message(
        self, tokens: list[tuple[bytes | None, bytes]]
    ) -> Iterable[tuple[StompSubscription, list[int]]]:
        token = self._hub.message_token + b"-"
        for subscription_id, message_id in tokens:
            digits = message_id.removeprefix(token)
            if len(digits) == len(message_id) or not digits.isdigit() or len(digits) > 18:
                raise _unknown_ack(message_id.decode("utf-8", "replace"))
            number = int(digits)
            if subscription_id is not None:
                name = subscription_id.decode()
                live = self.live.get(name)
                if live is not None and live.ledger is not None and live.ledger.ordinal_of_number(number) is not None:
                    candidates = [live]
                else:  # perhaps of an earlier subscription with the same id
                    candidates = [s for s in self._by_key.values() if s.subscription_id == name]
            else:
                candidates = list(self._by_key.values())
            for subscription in candidates:
                if subscription.ledger is not None:
                    ordinal = subscription.ledger.ordinal_of_number(number)
                    if ordinal is not None:
                        yield subscription, [ordinal]
                        break
            # Not found: settled before (a cumulative ACK covered it), or ack auto. A number is not proof of a mistake.


def _unknown_ack(token: str) -> ProtocolError:
    return ProtocolError(
        "unknown-delivery",
        f"nothing was delivered to this connection under {token[:80]!r}",
        "ACK and NACK name the ack header of a MESSAGE (1.2), or its message-id and subscription (1.0, 1.1).",
    )


def _prefetch(headers: dict[str, str], count: int, size_bytes: int) -> tuple[int | None, int | None]:
    """The credit that a SUBSCRIBE asks for, in either dialect. `credit: messages,bytes`; 0 of RabbitMQ's
    `prefetch-count` means no limit, 0 of ActiveMQ's means one at a time."""
    if "credit" in headers:
        first, _comma, second = headers["credit"].partition(",")
        parts = {"credit": first.strip(), "credit bytes": second.strip() or str(size_bytes)}
        wanted_count = whole_number(parts, "credit", 1_000_000)
        wanted_bytes = whole_number(parts, "credit bytes", 1 << 40)
        return max(1, wanted_count), max(1, wanted_bytes)
    if "prefetch-count" in headers:
        wanted = whole_number(headers, "prefetch-count", 1_000_000)
        return (None if wanted == 0 else wanted), size_bytes
    if "activemq.prefetchSize" in headers:
        return max(1, whole_number(headers, "activemq.prefetchSize", 1_000_000)), size_bytes
    return count, size_bytes
