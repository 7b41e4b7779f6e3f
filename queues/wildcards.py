"""Matching of names and patterns: two tries over the levels of names.

An *edge* is a level with the separator before it (`/queue`, `/a`, `.b`). In a trie of patterns `*` and `>` are edges
like others; a name follows, at each level, its own edge and the `*` with its separator, and collects the things at a
`>`. In a trie of names a pattern follows its edges, and all edges of a node where it has `*`. So a match costs the
nodes that agree with the query so far, whatever else is in the trie. `#` has its own walks: in a trie of patterns each
of its nodes is visited once for each level of the name at most, in a trie of names each node once.

Subscriptions and destinations have a kind (`/queue/`, `/topic/` ...), which a wildcard never leaves: their tries begin
with it (`path_of`). Patterns of policies and permissions cover names of all kinds, and begin at the first level.

Walks. Both kinds of matches may be many, so they are generators that can be suspended and continued later, even if the
trie has changed in between: things that were there at the beginning and still are are found once; things added in
between may be found or not.

Bound: a node of NODE_BYTES for each distinct prefix of the names in it. The owner of a trie may count them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from .names import HASH, HashPattern, edges_of, prefix_of

T = TypeVar("T", bound=Hashable)

Path = Sequence[str]
"""Edges, from the first level on."""

NODE_BYTES: Final = 720
"""Memory of a level in bytes beside its text: the node, its tables, the edge (tracemalloc, CPython 3.11)."""

POINTER_BYTES: Final = 8
COUNTED_MIN: Final = 64
"""Copies of fewer pointers are as good as nothing."""

Keep = Callable[[int], None]
"""Callback with a change of the bytes kept."""

_BELOW: Final = -1
"""Marker in place of a place in the pattern: everything from here on matches."""


def path_of(canonical: str) -> list[str]:
    """The edges of a destination or of the address of a subscription, behind its kind."""
    return [prefix_of(canonical), *edges_of(canonical)]


class _PatternNode(Generic[T]):
    __slots__ = ("children", "things")

    def __init__(self) -> None:
        self.children: dict[str, _PatternNode[T]] = {}
        self.things: dict[T, None] = {}


class PatternTrie(Generic[T]):
    """Things by patterns; asked for a name."""

    __slots__ = ("_count", "_hashes_count", "_keep", "_root")

    def __init__(self, keep: Keep | None = None) -> None:
        self._root: _PatternNode[T] = _PatternNode()
        self._keep = keep
        self._count = 0
        self._hashes_count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, path: Path, thing: T) -> None:
        """Each thing once under a pattern. O(levels)."""
        node = self._root
        new_bytes = 0
        for edge in path:
            child = node.children.get(edge)
            if child is None:
                child = node.children[edge] = _PatternNode()
                new_bytes += NODE_BYTES + len(edge)
                self._hashes_count += edge[1:] == HASH
            node = child
        if new_bytes and self._keep is not None:
            self._keep(new_bytes)
        if thing not in node.things:
            node.things[thing] = None
            self._count += 1

    def discard(self, path: Path, thing: T) -> None:
        """Take it out; nothing happens if it is not there. O(levels)."""
        nodes = [self._root]
        for edge in path:
            child = nodes[-1].children.get(edge)
            if child is None:
                return
            nodes.append(child)
        if thing in nodes[-1].things:
            del nodes[-1].things[thing]
            self._count -= 1
        gone_bytes = 0
        while len(nodes) > 1 and not nodes[-1].things and not nodes[-1].children:
            nodes.pop()
            edge = path[len(nodes) - 1]
            del nodes[-1].children[edge]
            gone_bytes += NODE_BYTES + len(edge)
            self._hashes_count -= edge[1:] == HASH
        if gone_bytes and self._keep is not None:
            self._keep(-gone_bytes)

    def matching(self, path: Path) -> Iterator[T | None]:
        """Yield the things whose pattern matches this name. None: a step without a result, for callers that count
        steps.
        """
        if not self._count:
            return
        if self._hashes_count:
            yield from self._matching_hashes(path)
            return
        end = len(path)
        stack: list[tuple[_PatternNode[T], int]] = [(self._root, 0)]
        while stack:
            node, place = stack.pop()
            if place == end:
                yield from tuple(node.things)
                continue
            yield None
            edge, children = path[place], node.children
            separator = edge[:1]
            if (len(edge) > 1 or place + 1 < end) and (rest := children.get(separator + ">")) is not None:
                yield from tuple(rest.things)
            star = separator + "*"
            if edge not in (star, separator + ">") and (child := children.get(edge)) is not None:
                stack.append((child, place + 1))
            if len(edge) > 1 and (child := children.get(star)) is not None:
                stack.append((child, place + 1))

    def _matching_hashes(self, path: Path) -> Iterator[T | None]:
        """Do the same where patterns have `#`. No node is visited twice at the same place of the name."""
        end = len(path)
        stack: list[tuple[_PatternNode[T], int, bool]] = [(self._root, 0, False)]
        entered: dict[_PatternNode[T], int] = {}
        """The first place that each node of a `#` was entered at: from there on it has been visited at all places."""
        while stack:
            node, place, is_hash = stack.pop()
            if place == end and not is_hash:
                yield from tuple(node.things)
            else:
                yield None
            children = node.children
            for separator in "./":
                child = children.get(separator + HASH)
                if child is None:
                    continue
                before = entered.get(child, end + 1)
                if before > end:
                    yield from tuple(child.things)
                if place < before:
                    entered[child] = place
                    if child.children:
                        stack.extend((child, behind, True) for behind in range(place, min(before, end)))
            if place == end:
                continue
            edge = path[place]
            level = edge[1:]
            if not is_hash and (level or place + 1 < end) and (rest := children.get(edge[:1] + ">")) is not None:
                yield from tuple(rest.things)
            wanted = []
            if level not in ("*", ">", HASH):
                wanted += [f".{level}", f"/{level}"] if is_hash else [edge]
            if level not in ("", HASH):
                wanted += [".*", "/*"] if is_hash else [edge[0] + "*"]
            stack += [(child, place + 1, False) for each in wanted if (child := children.get(each)) is not None]


class _NameNode(Generic[T]):
    __slots__ = ("children", "thing")

    def __init__(self) -> None:
        self.children: dict[str, dict[str, _NameNode[T]]] | None = None
        """Children by separator, then by edge. None: no children."""
        self.thing: T | None = None

    def child(self, edge: str) -> _NameNode[T] | None:
        return None if self.children is None else self.children.get(edge[:1], {}).get(edge)


class NameTrie(Generic[T]):
    """One thing for each name; asked for a pattern."""

    __slots__ = ("_keep", "_root")

    def __init__(self, keep: Keep | None = None) -> None:
        self._root: _NameNode[T] = _NameNode()
        self._keep = keep

    def put(self, path: Path, thing: T) -> None:
        """O(levels)."""
        node = self._root
        new_bytes = 0
        for edge in path:
            child = node.child(edge)
            if child is None:
                if node.children is None:
                    node.children = {}
                child = node.children.setdefault(edge[:1], {})[edge] = _NameNode()
                new_bytes += NODE_BYTES + len(edge)
            node = child
        node.thing = thing
        if new_bytes and self._keep is not None:
            self._keep(new_bytes)

    def remove(self, path: Path) -> None:
        """Remove the thing at `path`; does nothing if there is none. O(levels)."""
        nodes = [self._root]
        for edge in path:
            child = nodes[-1].child(edge)
            if child is None:
                return
            nodes.append(child)
        nodes[-1].thing = None
        for place in range(len(path) - 1, -1, -1):
            node, parent, edge = nodes[place + 1], nodes[place], path[place]
            if node.thing is not None or node.children is not None:
                return
            assert parent.children is not None, "this is how it was found"
            if self._keep is not None:
                self._keep(-NODE_BYTES - len(edge))
            same = parent.children[edge[:1]]
            del same[edge]
            if not same:
                del parent.children[edge[:1]]
            if not parent.children:
                parent.children = None

    def matching(self, path: Path) -> Iterator[T | None]:
        """Yield the things whose name this pattern matches. None: a step without a result, for callers that count
        steps.

        A level with `*` or `>` copies the children of its node, pointers only: a millisecond for a hundred thousand.
        Large ones count as kept until they have been gone through.
        """
        walk: _Walk[T] = _Walk(self._keep)
        try:
            if any(edge[1:] == HASH for edge in path):
                yield from walk.run_hashes(self._root, HashPattern(path))
            else:
                yield from walk.run(self._root, path)
        finally:
            walk.end()


class _Walk(Generic[T]):
    """Walk through a trie of names, with the copies that it has made."""

    __slots__ = ("_keep", "_kept_bytes", "_stack")

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self._kept_bytes = 0
        self._stack: list[tuple[Iterator[_NameNode[T]], int, int]] = []
        """Stack of nodes, their place in the pattern, and the counted size of their copy."""

    def run(self, root: _NameNode[T], path: Path) -> Iterator[T | None]:
        end = len(path)
        stack = self._stack
        self._push((root,), 0)
        while stack:
            nodes, place, size_bytes = stack[-1]
            node = next(nodes, None)
            if node is None:
                stack.pop()
                if size_bytes:
                    self._count(-size_bytes)
                continue
            yield node.thing if place in (end, _BELOW) else None
            if node.children is None or place == end:
                continue
            if place == _BELOW:
                for same in node.children.values():
                    self._push(tuple(same.values()), _BELOW)
                continue
            edge = path[place]
            separator, level = edge[:1], edge[1:]
            same = node.children.get(separator, {})
            if level not in ("*", ">"):
                child = same.get(edge)
                if child is not None:
                    self._push((child,), place + 1)
                continue
            empty = same.get(separator)
            named = tuple(same.values()) if empty is None else tuple(n for n in same.values() if n is not empty)
            self._push(named, place + 1 if level == "*" else _BELOW)
            if level == ">" and empty is not None and empty.children is not None:
                for each in empty.children.values():
                    self._push(tuple(each.values()), _BELOW)

    def run_hashes(self, root: _NameNode[T], pattern: HashPattern) -> Iterator[T | None]:
        """Walk with a pattern that has `#`."""
        below: list[tuple[Iterator[tuple[str, _NameNode[T]]], int, int]] = []
        """Stack of nodes with their edges, the places of the pattern before these, and the counted size of the copy."""
        node, places = root, pattern.start
        while True:
            yield node.thing if pattern.is_match(places) else None
            only = pattern.only_edge(places)
            if only is not None:
                if (child := node.child(only)) is not None:
                    below.append((iter(((only, child),)), places, 0))
            elif node.children is not None:
                for same in node.children.values():
                    size_bytes = 2 * POINTER_BYTES * len(same) if len(same) >= COUNTED_MIN else 0
                    below.append((zip(tuple(same), tuple(same.values()), strict=True), places, size_bytes))
                    if size_bytes:
                        self._count(size_bytes)
            found = None
            while found is None:
                if not below:
                    return
                nodes, before, size_bytes = below[-1]
                edge_and_node = next(nodes, None)
                if edge_and_node is None:
                    below.pop()
                    if size_bytes:
                        self._count(-size_bytes)
                    continue
                edge, node = edge_and_node
                if places := pattern.after(before, edge):
                    found = node
                else:
                    yield None

    def _push(self, nodes: tuple[_NameNode[T], ...], place: int) -> None:
        size_bytes = POINTER_BYTES * len(nodes) if len(nodes) >= COUNTED_MIN else 0
        self._stack.append((iter(nodes), place, size_bytes))
        if size_bytes:
            self._count(size_bytes)

    def _count(self, size_bytes: int) -> None:
        self._kept_bytes += size_bytes
        if self._keep is not None:
            self._keep(size_bytes)

    def end(self) -> None:
        """End the walk, complete or not."""
        if self._kept_bytes:
            self._count(-self._kept_bytes)
