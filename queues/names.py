"""Grammar of destination names.

`/queue/a`, `/topic/a.b`, `/log/a`, `/temp-queue/x`, `/temp-topic/x`, `/remote-temp-queue/…`, `/remote-temp-topic/…`; a
bare `a` is `/queue/a`, but `topic/a` is a typing error; anything else that starts with a slash is an opaque queue of
that very name (clients can't make one whose prefix is probably a typing error, such as `/queu/`: `meant_by`). A comma
joins several names into a composite.

Destinations of a virtual host have its prefix: `/queue/a` of the host shop is `/@shop/queue/a`, of which no wildcard
of another host covers anything. Clients write and read names without it (protocols/stomp/temporary.py).

On SUBSCRIBE `*` stands for one level and a last `>` for one or more; levels are separated by `.` or `/`. In the name of
a topic `#` stands for any number of levels, with any separators, wherever it is.
Source: DESIGN section 9; checklist b28, b31.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import attrs

NAME_LENGTH_MAX: Final = 1024
"""Characters. Names are table keys and log text; longer ones are mistakes."""


class DestinationNameError(ValueError):
    """Error of an invalid destination name: the message names it and says what is allowed."""


class Kind(Enum):
    QUEUE = "queue"
    TOPIC = "topic"
    LOG = "log"

    @property
    def is_topic(self) -> bool:
        return self is Kind.TOPIC


@attrs.frozen
class DestinationName:
    """One parsed destination name."""

    canonical: str
    """The full name, the key of all tables: `a` and `/queue/a` are the same."""
    kind: Kind
    temporary_local: bool = False
    """`/temp-…` as a client writes it: belongs to its connection, must be made global first."""
    temporary_global: bool = False
    """`/remote-temp-…`: one connection's temporary destination, as others see it."""
    wildcard: bool = False
    """Holds `*`, `>` or (a topic) `#` as a level: fine on SUBSCRIBE only."""

    @property
    def is_temporary(self) -> bool:
        """Whether the destination belongs to one connection."""
        return self.temporary_local or self.temporary_global

    def matches(self, canonical: str) -> bool:
        """Return whether this (wildcard) address covers that name, and is of its kind (`/>` does not cover
        `/queue/a`).
        """
        if not self.wildcard:
            return self.canonical == canonical
        return prefix_of(canonical) == prefix_of(self.canonical) and covers_name(self.canonical, canonical)


_PREFIXES: Final = (
    ("/queue/", Kind.QUEUE, False, False),
    ("/topic/", Kind.TOPIC, False, False),
    ("/log/", Kind.LOG, False, False),
    ("/temp-queue/", Kind.QUEUE, True, False),
    ("/temp-topic/", Kind.TOPIC, True, False),
    ("/remote-temp-queue/", Kind.QUEUE, False, True),
    ("/remote-temp-topic/", Kind.TOPIC, False, True),
)
SLIP_LENGTH_MIN: Final = 5
_NEAR: Final = (*(prefix.strip("/") for prefix, *_rest in _PREFIXES), "sluiceway")
"""First segments of names that are prefixes, not the name's own."""
_LEVEL: Final = re.compile(r"[./]")
_EDGE: Final = re.compile(r"[./][^./]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f]")

HASH: Final = "\0#"
"""Level of an edge that stands for any number of edges. No name holds control characters."""

HASH_LEVELS_MAX: Final = 32
"""Levels of a pattern with a `#` before its end: matching one costs as many times the levels of a name."""

_WITH_HASH: Final = ("/topic/", "/retained/")
"""Prefixes of patterns in which a level `#` is a wildcard: elsewhere it is a name."""
COMPOSITE_COUNT_MAX: Final = 100
"""Destinations in one composite: each costs its queue a copy of the message."""


PART_SEPARATOR: Final = "\x1f"
"""Between the name of a partitioned queue and the number of a part: no name holds control characters."""


def name_of_part(canonical: str, part: int) -> str:
    """Return the name of a part where each needs its own, as on disk; part 0 has that of the queue."""
    return f"{canonical}{PART_SEPARATOR}{part}" if part else canonical


def split_part(name: str) -> tuple[str, int]:
    """Undo `name_of_part`. Raises DestinationNameError for a name that it does not make."""
    canonical, separator, part = name.partition(PART_SEPARATOR)
    if not separator:
        return name, 0
    if not (part.isascii() and part.isdigit()) or not int(part) or part != str(int(part)):
        raise DestinationNameError(f"the destination {name!r} holds control characters")
    return canonical, int(part)


def part_in_words(name: str) -> str:
    """Return what `name_of_part` made, for people."""
    return name.replace(PART_SEPARATOR, " part ", 1)


HOST_SIGN: Final = "/@"
"""Beginning of the names of destinations in virtual hosts."""
HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST: Final = re.compile(rf"/@{HOST_NAME.pattern}(?=/)")


def host_prefix(host: str) -> str:
    """Return the prefix of all names in a virtual host; empty for the default host, which is called so, too."""
    return f"{HOST_SIGN}{host}" if host else ""


def host_prefix_of(canonical: str) -> str:
    """Return `/@shop` of `/@shop/queue/a`; empty for a name of the default host."""
    if not canonical.startswith(HOST_SIGN):
        return ""
    found = _HOST.match(canonical)
    return "" if found is None else found[0]


def without_host(canonical: str) -> str:
    """Return the name as clients of its virtual host write it."""
    return canonical[len(host_prefix_of(canonical)) :]


def in_host(prefix: str, address: DestinationName) -> DestinationName:
    """Return the address that a client of the virtual host with this prefix means."""
    return _parse(prefix + address.canonical) if prefix else address


def prefix_of(canonical: str) -> str:
    """`/queue/` and the like, behind the virtual host; empty for an opaque name of the default host."""
    host = host_prefix_of(canonical)
    said = canonical[len(host) :]
    prefix = next((prefix for prefix, *_rest in _PREFIXES if said.startswith(prefix)), "")
    return host + (prefix or "/") if host else prefix


def first_segment(name: str) -> str:
    """Return the part between the first slash and the next one: `queue` of `/queue/a`."""
    return name[1:].partition("/")[0]


@functools.lru_cache(maxsize=4096)
def meant_by(canonical: str) -> str:
    """Return the name that was probably meant by an opaque one whose prefix is nearly a known one; empty: none. Of a
    virtual host it is as its clients write it.
    """
    canonical = without_host(canonical)
    if prefix_of(canonical):
        return ""
    inside = "/" + canonical.lstrip("/")
    if inside != canonical:
        return inside if prefix_of(inside) else ""
    written, slash, name = canonical[1:].partition("/")
    if not slash or not name or written in _NEAR:
        return ""
    word = written.lower().replace("_", "-")
    one = word.removesuffix("s")  # /topics/a, and with a slip /topcs/a
    near = next(
        (known for known in _NEAR if known in (word, one) or _is_slip(word, known) or _is_slip(one, known)), None
    )
    return "" if near is None else f"/{near}/{name}"


def _meant_with_slash(text: str) -> str:
    """Return the name that was probably meant by a bare one such as `topic/a` or `topics/a`; empty: none."""
    if text.startswith("/") or "/" not in text:
        return ""
    whole = f"/{text}"
    return whole if first_segment(whole) in _NEAR else meant_by(whole)


def is_whole(text: str) -> bool:
    """Return whether a text of one line is a full name with a known prefix, such as `/queue/a`."""
    prefix = prefix_of(text)
    return len(prefix) < len(text) <= NAME_LENGTH_MAX and prefix != "" and _CONTROL.search(text) is None


def are_swapped(destination: str, body: str) -> bool:
    """Return whether body and destination of a message were probably given in each other's place."""
    return not destination.startswith("/") and is_whole(body)


def _is_slip(word: str, known: str) -> bool:
    """Whether one character is missing, too many or another one, or two are swapped. Short words are near to too many
    others.
    """
    if len(known) < SLIP_LENGTH_MIN or abs(len(word) - len(known)) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(word, known, strict=False)) if a != b), len(word))
    left, right = word[start:], known[start:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return swapped or left[1:] == right[1:] or left[1:] == right or left == right[1:]


def parse(text: str) -> DestinationName:
    """One name (not a composite). Raises DestinationNameError. Cached: a broker sees few distinct names often."""
    return _parse(text)


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> DestinationName:
    if not text or text.isspace():
        raise DestinationNameError("the destination is empty: name one, such as /queue/orders")
    host = host_prefix_of(text)
    inner = _parse_in_host(text[len(host) :])  # hosts do not nest: what follows may begin with `/@` once more
    return attrs.evolve(inner, canonical=host + inner.canonical) if host else inner


def _parse_in_host(text: str) -> DestinationName:
    if len(text) > NAME_LENGTH_MAX:
        raise DestinationNameError(
            f"the destination is {len(text)} characters long, at most {NAME_LENGTH_MAX} are allowed"
        )
    if _CONTROL.search(text):
        raise DestinationNameError(f"the destination {text!r} holds control characters")
    for prefix, kind, local, remote in _PREFIXES:
        if text.startswith(prefix):
            if len(text) == len(prefix):
                raise DestinationNameError(f"the destination {text!r} has no name after {prefix!r}")
            wildcard = _is_wildcard(text[len(prefix) :]) or has_hash(text)
            if wildcard and (local or remote):
                raise DestinationNameError(f"{text!r}: wildcards are not for temporary destinations, name one of them")
            return _checked(DestinationName(text, kind, local, remote, wildcard))
        if text == prefix[:-1]:
            raise DestinationNameError(f"the destination {text!r} has no name: write {prefix}NAME")
    if meant := _meant_with_slash(text):
        raise DestinationNameError(
            f"{text!r} has no slash in front: did you mean {meant}? A queue that is really called so is /queue/{text}"
        )
    canonical = text if text.startswith("/") else f"/queue/{text}"
    return _checked(DestinationName(canonical, Kind.QUEUE, wildcard=_is_wildcard(text) or has_hash(text)))


def _checked(address: DestinationName) -> DestinationName:
    if address.wildcard:
        check_pattern(address.canonical)
    return address


def parse_composite(text: str) -> tuple[DestinationName, ...]:
    """The parts of `a,b,c`; one part if there is no comma. Raises DestinationNameError."""
    if "," not in text:
        return (parse(text),)
    parts = dict.fromkeys(parse(part.strip()) for part in text.split(","))
    if len(parts) > COMPOSITE_COUNT_MAX:
        raise DestinationNameError(
            f"the composite destination names {len(parts)} destinations, at most {COMPOSITE_COUNT_MAX} are allowed"
        )
    return tuple(parts)


def is_one_queue(text: str) -> bool:
    """Return whether a destination header names one queue that is not temporary. Raises DestinationNameError."""
    addresses = parse_composite(text)
    first = addresses[0]
    return len(addresses) == 1 and first.kind is Kind.QUEUE and not (first.wildcard or first.is_temporary)


def _is_wildcard(name: str) -> bool:
    return ("*" in name or ">" in name) and any(level in ("*", ">") for level in _LEVEL.split(name))


def has_hash(pattern: str) -> bool:
    """Return whether a full name or pattern has `#` as a level that is a wildcard. O(levels)."""
    return "#" in pattern and without_host(pattern).startswith(_WITH_HASH) and "#" in _LEVEL.split(pattern)


def edges_of(name: str) -> list[str]:
    """The levels of a full name or pattern, each with the separator before it: `/queue`, `/a`, `.b`. A `#` that is a
    wildcard has the level HASH; several in a row are one.
    """
    edges = _EDGE.findall(name)
    if "#" not in name or not without_host(name).startswith(_WITH_HASH):
        return edges
    found: list[str] = []
    for edge in edges:
        if edge[1:] != "#":
            found.append(edge)
        elif found[-1][1:] != HASH:
            found.append(edge[0] + HASH)
    return found


def check_pattern(pattern: str) -> None:
    """Raise DestinationNameError for a `>` level before the end or beside `#`, and for a `#` before the end of a
    pattern of many levels.
    """
    edges = edges_of(pattern)
    if any(edge[1:] == ">" for edge in edges[:-1]):
        raise DestinationNameError(
            f"{pattern!r}: the wildcard '>' stands for all the rest, so it must be the last level"
        )
    if not has_hash(pattern):
        return
    if edges[-1][1:] == ">":
        raise DestinationNameError(
            f"{pattern!r} has both '#' and '>': write '*.#' in place of the last, for one level or more"
        )
    if len(edges) > HASH_LEVELS_MAX and any(edge[1:] == HASH for edge in edges[:-1]):
        raise DestinationNameError(
            f"{pattern!r} has {len(edges)} levels: with a '#' before its end a pattern may have {HASH_LEVELS_MAX}"
        )


class HashPattern:
    """A pattern with `#` levels, as the set of places in it that a name has come to: a bit for each. So a match costs
    one step for each level of the name, however many `#` there are.

    Behind a `#` either separator will do: what it stands for may be nothing.
    """

    __slots__ = ("_by_edge", "_end", "_loops", "_single", "_stars", "start")

    def __init__(self, edges: Sequence[str]) -> None:
        self._by_edge: dict[str, int] = {}
        self._stars = {".": 0, "/": 0}
        self._loops = 0
        self._single: dict[int, str] = {}
        """The edge that leads on from a set of one place, where there is only one."""
        is_loose = False
        for place, edge in enumerate(edges):
            bit = 1 << place
            level = edge[1:]
            if level == HASH:
                self._loops |= bit
                is_loose = True
                continue
            for fitting in (f".{level}", f"/{level}") if is_loose else (edge,):
                if level == "*":
                    self._stars[fitting[0]] |= bit
                else:
                    self._by_edge[fitting] = self._by_edge.get(fitting, 0) | bit
            if level != "*" and not is_loose:
                self._single[bit] = edge
            is_loose = False
        self._end = 1 << len(edges)
        self.start = self._closed(1)
        """Places before the first edge of a name."""

    def _closed(self, places: int) -> int:
        return places | (places & self._loops) << 1

    def after(self, places: int, edge: str) -> int:
        """Return the places behind one more edge of a name; 0: it does not match."""
        fitting = self._by_edge.get(edge, 0)
        if len(edge) > 1:
            fitting |= self._stars[edge[0]]
        return self._closed((places & self._loops) | (places & fitting) << 1)

    def is_match(self, places: int) -> bool:
        """Return whether a name that ends here matches."""
        return bool(places & self._end)

    def only_edge(self, places: int) -> str | None:
        """Return the only edge that leads on from these places; None: there may be several."""
        return self._single.get(places)

    def matches(self, edges: Iterable[str]) -> bool:
        """Return whether a name matches. O(levels of the name)."""
        places = self.start
        for edge in edges:
            places = self.after(places, edge)
            if not places:
                return False
        return self.is_match(places)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> HashPattern:
    return HashPattern(edges_of(pattern))


def covers_name(pattern: str, name: str) -> bool:
    """Return whether a pattern with wildcards matches this full name, of any kind. O(levels)."""
    if has_hash(pattern):
        return _compiled(pattern).matches(edges_of(name))
    wanted, found = edges_of(pattern), edges_of(name)
    for place, edge in enumerate(wanted):
        if place >= len(found):
            return False
        there, level = found[place], edge[1:]
        if level == ">":
            return there[0] == edge[0] and (len(there) > 1 or place + 1 < len(found))
        if level == "*":
            if there[0] != edge[0] or len(there) == 1:
                return False
        elif there != edge:
            return False
    return len(wanted) == len(found)
