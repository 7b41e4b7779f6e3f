"""Long lists, a page at a time, without sorting all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from sluiceway.admin.errors import bad_request
from sluiceway.flow.graph import Steps, best_in_steps
from sluiceway.steps import each

T = TypeVar("T")


@attrs.frozen(slots=True, order=False)
class _Backwards:
    """Compares the other way round."""

    key: Any

    def __lt__(self, other: _Backwards) -> bool:
        return bool(other.key < self.key)

    def __gt__(self, other: _Backwards) -> bool:
        return bool(self.key < other.key)


LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500
OFFSET_MAX: Final = 100_000

Row = dict[str, Any]


@attrs.frozen(slots=True)
class PageRequest:
    """Requested part of a list."""

    offset: int = 0
    limit: int = LIMIT_DEFAULT
    sort: str = ""
    """A key; with a minus before it the largest come first."""
    q: str = ""
    """Text that the name must contain, in any case."""


def page_in_steps(
    page: PageRequest,
    items: Sequence[T],
    *,
    name_of: Callable[[T], str],
    keys: Mapping[str, Callable[[T], Any]],
    make: Callable[[T], Row],
    sort: str,
) -> Steps[Row]:
    """Make that page of the items, as `{total, offset, items}`. `keys`: sort keys by name; `make`: makes a row of an
    item; `sort`: default order. Raises ApiError for an unknown key.
    """
    wish = page.sort or sort
    key = keys.get(wish.lstrip("-"))
    if key is None:
        raise bad_request(f"it can't be sorted by {wish[:40]!r}", f"Sort by one of: {', '.join(sorted(keys))}.")
    wanted = page.q.casefold()
    found = list(items)
    if wanted:
        found = []
        for item in items:
            yield
            if wanted in name_of(item).casefold():
                found.append(item)
    rank = key if wish.startswith("-") else lambda item: _Backwards(key(item))
    best, total = yield from best_in_steps(found, rank, page.offset + page.limit)
    rows = yield from each(best[page.offset :], make)
    return {"total": total, "offset": page.offset, "items": rows}
