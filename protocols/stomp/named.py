"""Deliveries that ACKs and NACKs name: by the ack header of a MESSAGE (1.2), by its message-id (1.0, 1.1).

An unknown id is an ERROR; the id of a settled delivery names nothing (b43). Checklist b36-b43.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from .delivery import StompSubscription
from .errors import ProtocolError, unknown_ack
from .repeats import parse_own

LOG_TOKEN: Final = b"log."
"""Beginning of the message-ids of records."""

LOOKED_AT_ONCE: Final = 16
"""Number of subscriptions among which a message is found at no cost."""

_AUTO_END: Final = 10**18
"""End of the ordinals that an ACK may name with ack `auto`, where no ordinals are given out."""


class NamedDeliveries:
    """Deliveries of one connection, by the names that ACKs use."""

    __slots__ = ("_by_number", "_live", "_token", "known", "next_key")

    def __init__(self, live: Mapping[str, StompSubscription], token: bytes) -> None:
        """`live`: the subscriptions that have not ended, by id; `token`: how the message-ids of the broker begin."""
        self._live = live
        self._token = token
        self.known: dict[int, StompSubscription] = {}
        """All subscriptions with unacknowledged deliveries, by key."""
        self.next_key = 1
        """Keys below it were given out."""
        self._by_number = False
        """1.2: an ACK has named a message-id, so all ledgers know their messages by number."""

    def add(self, subscription: StompSubscription) -> None:
        """A new one."""
        self.known[subscription.key] = subscription
        if self._by_number:
            deque(subscription.indexing_numbers(), 0)  # it has no deliveries yet

    def of(
        self, tokens: list[bytes] | list[tuple[bytes | None, bytes]]
    ) -> Iterator[tuple[StompSubscription, list[int]]]:
        """Yield the deliveries that the tokens name, in order; those of one subscription together where they follow
        each other. Each of them was given out. One without ordinals stands for the work of looking. Raises
        ProtocolError at the first token that names none.
        """
        first = tokens[0]
        if isinstance(first, bytes):
            return self._by_ack(tokens)  # type: ignore[arg-type]
        return self._by_message(tokens)  # type: ignore[arg-type]

    def _by_ack(self, tokens: list[bytes]) -> Iterator[tuple[StompSubscription, list[int]]]:
        start = 0
        while start < len(tokens):
            key, dash, _ordinal = tokens[start].partition(b"-")
            known = bool(dash) and key.isdigit() and len(key) < 12 and 0 < int(key) < self.next_key
            if not known:
                if not self._by_number:
                    self._by_number = True
                    for each in list(self.known.values()):
                        for _ in each.indexing_numbers():
                            yield each, []
                found = self._find_anywhere(tokens[start])
                if len(self.known) > LOOKED_AT_ONCE:
                    yield next(iter(self.known.values())), []
                if found is not None:
                    yield found[0], [found[1]]
                start += 1
                continue
            subscription = self.known.get(int(key))
            if subscription is None:  # it is over and settled
                start += 1
                continue
            prefix = key + dash
            length = len(prefix)
            end_ordinal = _AUTO_END if subscription.ledger is None else subscription.ledger.next_ordinal
            ordinals: list[int] = []
            wrong: bytes | None = None
            while start < len(tokens) and tokens[start].startswith(prefix):
                digits = tokens[start][length:]
                if not digits.isdigit() or len(digits) > 18 or (ordinal := int(digits)) >= end_ordinal:
                    wrong = tokens[start]
                    break
                ordinals.append(ordinal)
                start += 1
            if ordinals:
                yield subscription, ordinals
            if wrong is not None:
                raise unknown_ack(wrong)

    def _by_message(self, tokens: list[tuple[bytes | None, bytes]]) -> Iterator[tuple[StompSubscription, list[int]]]:
        find_number = self._find
        current: StompSubscription | None = None
        ordinals: list[int] = []
        wrong: bytes | None = None
        for subscription_id, message_id in tokens:
            token, _dash, digits = message_id.rpartition(b"-")
            find = find_number if digits.isdigit() and len(digits) <= 18 else self._find_repeat
            if not self._is_ours(token) or (find is not find_number and parse_own(digits) is None):
                wrong = message_id
                break
            found = find(subscription_id, token, digits)
            if len(self.known) > LOOKED_AT_ONCE and (found is None or subscription_id is None):
                yield next(iter(self.known.values())), []
            if ordinals and found is not None and (found[0] is not current or found[1] <= ordinals[-1]):
                assert current is not None
                # Collected ones take effect first: they may settle the very delivery that was found.
                yield current, ordinals
                ordinals = []
                found = find(subscription_id, token, digits)
            if found is not None:
                current, ordinal = found
                ordinals.append(ordinal)
            # Not found: settled before (a cumulative ACK covered it), or ack auto. A number is not proof of a mistake.
        if current is not None and ordinals:
            yield current, ordinals
        if wrong is not None:
            raise unknown_ack(wrong)

    def _find_anywhere(self, message_id: bytes) -> tuple[StompSubscription, int] | None:
        """Find the subscription in which the message is unsettled, though 1.2 names messages by the ack header; None:
        there is none, as with ack `auto`. Raises ProtocolError for an invalid message-id, and where two subscriptions
        have the message.
        """
        token, _dash, digits = message_id.rpartition(b"-")
        if not digits.isdigit() or len(digits) > 18 or not self._is_ours(token):
            raise unknown_ack(message_id)
        number = int(digits)
        found = [
            (subscription, ordinal)
            for subscription in self.known.values()
            if subscription.ledger is not None
            and subscription.ledger.unsettled_count
            and subscription.token == token
            and (ordinal := subscription.ledger.ordinal_of_number(number)) is not None
        ]
        if len(found) > 1:
            raise ProtocolError(
                "unknown-delivery",
                f"{len(found)} subscriptions of this connection have the message {message_id.decode()!r}",
                "ACK and NACK name the ack header of a MESSAGE in STOMP 1.2.",
            )
        return found[0] if found else None

    def _is_ours(self, token: bytes) -> bool:
        return token == self._token or token.startswith(LOG_TOKEN)

    def _find(self, subscription_id: bytes | None, token: bytes, digits: bytes) -> tuple[StompSubscription, int] | None:
        """Find the subscription in which the message is unsettled: the live one of this id, else an earlier one;
        without an id (1.0) the oldest that was sent the message. `token`: that of logs, or that of all queues, which
        number separately. O(1), but O(known subscriptions) where the live one does not have the message.
        """
        name = None if subscription_id is None else subscription_id.decode()
        number = int(digits)
        if name is not None:
            live = self._live.get(name)
            ordinal = None if live is None or live.token != token else live.ordinal_of_number(number)
            if live is not None and ordinal is not None:
                return live, ordinal
            if len(self.known) == len(self._live):
                return None  # none has ended that would have had this id
        for subscription in self.known.values():
            if subscription.token == token and (name is None or subscription.subscription_id == name):
                ordinal = subscription.ordinal_of_number(number)
                if ordinal is not None:
                    return subscription, ordinal
        return None

    def _find_repeat(
        self, subscription_id: bytes | None, token: bytes, last: bytes
    ) -> tuple[StompSubscription, int] | None:
        """Return the delivery with a message-id of its own, if it is unsettled. O(1)."""
        number, key, ordinal = parse_own(last) or (-1, -1, -1)
        subscription = self.known.get(key)
        if subscription is None or subscription.token != token:
            return None
        if subscription_id is not None and subscription.subscription_id != subscription_id.decode():
            return None
        repeats = None if subscription.ledger is None else subscription.ledger.repeats
        return (subscription, ordinal) if repeats is not None and repeats.is_own(number, ordinal) else None
