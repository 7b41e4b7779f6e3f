"""Wishes in the headers of a SUBSCRIBE, in the dialects of RabbitMQ and ActiveMQ too.

Source: DESIGN section 9; docs/stomp.md.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Final

import attrs

from ...queues.names import parse_composite
from ...queues.selectors import Selection, SelectorError
from ...queues.selectors.table import SelectorLimitError
from ...queues.steps import Waiting
from .dialects import QUEUE_ARGUMENTS, is_durable
from .errors import ProtocolError
from .escaping import Version
from .head import whole_number
from .hub import Hub

ACK_AUTO: Final = "auto"
ACK_CLIENT: Final = "client"
ORDERED_ONLY: Final = "sluiceway-ordered-only"
"""Header by which another hub says of a wildcard that it serves its clients itself, but for topics that go by way of
their owner.
"""
IF_ANY: Final = "sluiceway-if-any"
"""Header by which another hub says of the UNSUBSCRIBE of a durable subscription that it may be elsewhere: the RECEIPT
says whether it was here.
"""
FOUND: Final = "found"
"""Header of that RECEIPT: `false` if it was not."""
IN_FORCE: Final = "in-force"
"""Header of the RECEIPT for another hub's request about credit: what is in force then, as JSON."""


@attrs.frozen
class SubscriptionSpec:
    """Common parameters of subscriptions of all kinds.

    Attributes:
        key: begins each value of the header `ack`; of this connection alone.
        subscription_id: as the client gave it; None: a client of 1.0 that gave none.
        label: text for people.
        destination: as the client named it.
        prefetch_count, prefetch_bytes: credit; None: no limit.
        rank: of a queue's consumers those with the highest come first.
    """

    key: int
    subscription_id: str | None
    label: str
    destination: str
    ack: str
    version: Version
    prefetch_count: int | None
    prefetch_bytes: int | None
    rank: int = 0
    ordered_only: bool = False
    """Whether a wildcard leaves out the topics that each hub serves itself."""

    @property
    def has_ack_header(self) -> bool:
        """Whether ACKs name the header `ack` of a MESSAGE."""
        return self.ack != ACK_AUTO and self.version == "1.2"


def durable_name_of(headers: Mapping[str, str], destination: str | None) -> str | None:
    """The name of the durable subscription that is meant, in either dialect; None: none is. Queues keep their messages
    anyway: there it means nothing, and clients say it all the same. RabbitMQ takes `persistent` for `durable`, and
    Python's `True` for `true`.
    """
    if destination is not None and not any(address.kind.is_topic for address in parse_composite(destination)):
        return None
    name = headers.get("activemq.subscriptionName")
    if name is None:
        if not is_durable(headers):
            return None
        name = headers.get("id")
    if not name:
        raise ProtocolError(
            "durable-without-name",
            "a durable subscription has a name",
            "Give an id with durable:true, or activemq.subscriptionName (and client-id in CONNECT).",
        )
    return name


def unknown_durable(name: str, client_id: str) -> ProtocolError:
    """Return the refusal of an UNSUBSCRIBE of a durable subscription that is not there."""
    return ProtocolError(
        "unknown-subscription",
        f"no durable subscription {name!r}" + (f" of client {client_id!r}" if client_id else ""),
        "It has the name, and belongs to the client-id, with which it was made.",
    )


@attrs.frozen
class Declared:
    """Wishes of a SUBSCRIBE about its queue, in RabbitMQ's words.

    Attributes:
        limits: settings of QueuePolicy, at most as configured.
        goes_with_consumers: delete the queue when its last consumer has left.
    """

    limits: Mapping[str, int]
    goes_with_consumers: bool


_COUNT_MAX: Final = 2**62


def declared_by(headers: Mapping[str, str]) -> Declared | None:
    """Return what a SUBSCRIBE to one queue wishes of it; None: nothing. Raises ProtocolError for a number that is
    none.
    """
    limits: dict[str, int] = {}
    for header in QUEUE_ARGUMENTS.keys() & headers.keys():
        value = whole_number(headers, header, _COUNT_MAX)
        if value == 0:
            raise ProtocolError(f"bad-{header}", f"header {header} is 0", "Send 1 or more, or leave the header out.")
        limits[QUEUE_ARGUMENTS[header]] = value
    goes = headers.get("auto-delete") in ("true", "True")
    return Declared(limits, goes) if limits or goes else None


def prefetch_of(
    headers: dict[str, str], count: int, size_bytes: int, *, asked_bytes_max: int
) -> tuple[int | None, int | None]:
    """Return the credit that a SUBSCRIBE asks for, in either dialect. `credit: messages,bytes`; 0 of RabbitMQ's
    `prefetch-count` means no limit, 0 of ActiveMQ's means one at a time. Artemis counts bytes, -1 is no limit.

    `asked_bytes_max` is the most that a client can ask for; the default of the policy may be more.
    """
    if "credit" in headers:
        first, _comma, second = headers["credit"].partition(",")
        parts = {"credit": first.strip(), "credit bytes": second.strip()}
        wanted_count = whole_number(parts, "credit", 1_000_000)
        if parts["credit bytes"]:
            size_bytes = min(whole_number(parts, "credit bytes", 1 << 40), asked_bytes_max)
        return max(1, wanted_count), max(1, size_bytes)
    if "prefetch-count" in headers:
        wanted = whole_number(headers, "prefetch-count", 1_000_000)
        return (None if wanted == 0 else wanted), size_bytes
    if "activemq.prefetchSize" in headers:
        return max(1, whole_number(headers, "activemq.prefetchSize", 1_000_000)), size_bytes
    window = headers.get("consumer-window-size")
    if window is not None:
        if window.strip() == "-1":
            return None, None
        wanted_bytes = whole_number(headers, "consumer-window-size", 1 << 40)
        return (count, min(wanted_bytes, asked_bytes_max)) if wanted_bytes else (1, size_bytes)
    return count, size_bytes


_CREDIT_HEADERS: Final = ("credit", "prefetch-count", "activemq.prefetchSize", "consumer-window-size")
PAUSED: Final = "paused"


@attrs.frozen
class CreditChange:
    """Wish of a client about the credit of a subscription that it has, or will have.

    Attributes:
        is_paused: whether to deliver nothing for now; None: as before.
        count, size_bytes: messages and bytes that may be unacknowledged; None: as before.
    """

    is_paused: bool | None
    count: int | None = None
    size_bytes: int | None = None

    def applied_to(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a SUBSCRIBE that would have made the subscription as it is now."""
        changed = dict(headers)
        if self.count is not None:
            changed = {name: value for name, value in headers.items() if name not in _CREDIT_HEADERS}
            size_bytes = self.size_bytes
            if size_bytes is None:
                size_bytes = _bytes_in(headers.get("credit", ""))
            changed["credit"] = f"{self.count}" if size_bytes is None else f"{self.count},{size_bytes}"
        if self.is_paused is not None:
            changed[PAUSED] = "true" if self.is_paused else "false"
        return changed

    def headers(self) -> dict[str, str]:
        """Return the wish as headers, as `credit_change_of` reads them."""
        headers = {} if self.is_paused is None else {PAUSED: "true" if self.is_paused else "false"}
        if self.count is not None:
            headers["credit"] = f"{self.count}" if self.size_bytes is None else f"{self.count},{self.size_bytes}"
        return headers


def _bytes_in(credit: str) -> int | None:
    digits = credit.partition(",")[2].strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None


def credit_change_of(headers: Mapping[str, str], *, asked_bytes_max: int) -> CreditChange:
    """Return the wish of a request about credit: `credit:0` and `paused:true` pause, another `credit` sets the window
    and resumes unless `paused` says otherwise. Raises ProtocolError.
    """
    paused = headers.get(PAUSED)
    if paused is not None and paused not in ("true", "false"):
        raise ProtocolError(
            "bad-paused", f"header paused is {paused[:40]!r}", "Send paused:true or paused:false, or leave it out."
        )
    is_paused = None if paused is None else paused == "true"
    if "credit" not in headers:
        if is_paused is None:
            raise ProtocolError(
                "missing-header",
                "a request about credit without credit and without paused",
                "Send credit:MESSAGES, credit:MESSAGES,BYTES, or paused:true or paused:false.",
            )
        return CreditChange(is_paused)
    first, comma, second = headers["credit"].partition(",")
    count = whole_number({"credit": first}, "credit", 1_000_000)
    size_bytes: int | None = None
    if comma:
        size_bytes = whole_number({"credit": second}, "credit", 1 << 40)
        size_bytes = max(1, min(size_bytes, asked_bytes_max))
    if not count:
        return CreditChange(is_paused is not False)
    return CreditChange(bool(is_paused), count, size_bytes)


_RANK: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


def rank_of(headers: Mapping[str, str]) -> int:
    """Return the priority of a consumer, in either dialect; 0 without one. Raises ProtocolError."""
    header = next((name for name in ("x-priority", "activemq.priority") if name in headers), None)
    if header is None:
        return 0
    value = headers[header].strip()
    if _RANK.fullmatch(value) is None:
        raise ProtocolError(
            f"bad-{header}",
            f"header {header} is no whole number",
            f"Its value is {value[:40]!r}. Send plain decimal digits, a minus before them if need be.",
        )
    return int(value)


def selecting(text: str, hub: Hub) -> Generator[Waiting | None, None, Selection | None]:
    """Make the selection of a SUBSCRIBE with this selector, in steps; None: all messages. Raises ProtocolError, whose
    body shows the place.
    """
    try:
        return (yield from hub.registry.selectors.taking(text, message_token=hub.message_token.decode()))
    except SelectorError as error:
        raise ProtocolError("bad-selector", f"the selector is wrong at {error}", f"Here:\n{error.picture}\n") from None
    except SelectorLimitError as error:
        raise ProtocolError(
            "too-many-selectors", str(error), "Use shorter ones, the same for more consumers, or raise that limit."
        ) from None
