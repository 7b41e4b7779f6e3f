"""Order of a group's records while its consumers share them, as their SUBSCRIBEs say; all of a group say the same.

- ANY: each consumer gets its share in order (log_readers.py).
- EXCLUSIVE: one consumer, the one that joined first, gets all records in order (exclusive_order.py).
- BY_KEY: records of one key go to one consumer at a time, in order (by_key.py).
- PARTITIONS: the consumers are those of all partitions of a log, and one of them has this one (sharing_out.py).

The order is that of the consumers that are there: when the last one has left, and nothing is in its hands any more,
the next one may bring another.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from types import MappingProxyType
from typing import Any, Final, Protocol

ANY: Final = ""
EXCLUSIVE: Final = "exclusive"
BY_KEY: Final = "by-key"
PARTITIONS: Final = "partitions"
IN_WORDS: Final = MappingProxyType(
    {
        ANY: "no order",
        EXCLUSIVE: "exclusive:true",
        BY_KEY: "order:by-key",
        PARTITIONS: "partitions of the whole log",
    }
)
"""Orders as SUBSCRIBEs ask for them."""


class Order(Protocol):
    """Order of one group, and who of its consumers may get records."""

    @property
    def name(self) -> str:
        """EXCLUSIVE, BY_KEY or PARTITIONS."""

    @property
    def holds_back(self) -> bool:
        """Whether nothing may be handed out now, to any consumer."""

    def joined(self, subscription: Any) -> None:
        """Note a new consumer, which is in the line."""

    def left(self, subscription: Any) -> None:
        """Note a consumer that has left the line; records may be in its hands."""

    def credited(self, subscription: Any) -> bool:
        """Note that a consumer has credit again; return whether it may get records now."""

    def answered(self, subscription: Any, sequences: SequenceOf[int]) -> None:
        """Note records that are not in the consumer's hands any more."""

    def moved(self) -> None:
        """Note that the group was moved: what is in consumers' hands counts for nothing."""

    def facts(self) -> Mapping[str, object]:
        """Return facts for people."""
