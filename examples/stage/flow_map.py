"""Asks the broker who waits for whom, the way any client can: SEND to /sluiceway/stat with a reply-to.

A thread asks a few times a second for the screen; acts ask by themselves when they want to know at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stomp.exception import StompException

from examples.stage.clients import Player, wait_until

REQUEST: Final = "/sluiceway/stat"
REPLY: Final = "/temp-queue/stat"
REPLY_SECONDS: Final = 10.0
CHAINS_SHOWN_MAX: Final = 3


class FlowMap:
    """A connection that asks."""

    def __init__(self, host: str, port: int) -> None:
        self._player = Player("the observer", host, port)
        self._player.subscribe(REPLY)
        self._asking = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.rss_bytes_max = 0
        """The most memory that the broker was seen to use."""
        self._recent_bytes_max = 0

    @property
    def hub(self) -> str:
        """Hub that is asked; empty: the broker is no cluster."""
        return self._player.hub

    def ask(self) -> dict[str, Any]:
        """Return the report of this moment. Raises TimeoutError, or stomp.py's exceptions if the broker is gone."""
        with self._asking:
            inbox = self._player.inbox
            inbox.messages.clear()
            self._player.send(REQUEST, "", **{"reply-to": REPLY})
            if not wait_until(lambda: bool(inbox.messages), REPLY_SECONDS):
                raise TimeoutError(f"no answer from {REQUEST} within {REPLY_SECONDS:g} s")
            report: dict[str, Any] = json.loads(inbox.messages[0].body)
        rss_bytes = report["broker"]["rss_bytes"]
        self.rss_bytes_max = max(self.rss_bytes_max, rss_bytes)
        self._recent_bytes_max = max(self._recent_bytes_max, rss_bytes)
        return report

    def most_memory_since(self) -> int:
        """The most memory that the broker was seen to use since this was asked last."""
        self.ask()
        most_bytes, self._recent_bytes_max = self._recent_bytes_max, 0
        return most_bytes

    def destination(self, name: str) -> Mapping[str, Any]:
        """The counters of one destination now; empty if the broker does not have it."""
        return next((row for row in self.ask()["destinations"] if row["name"] == name), {})

    def watch(self, tell: Callable[[Mapping[str, Any]], None], *, interval_seconds: float) -> None:
        """Ask again and again, in a thread, until `close`; `tell` gets each report there."""

        def run() -> None:
            while not self._ended.wait(interval_seconds):
                try:
                    report = self.ask()
                except (TimeoutError, StompException, OSError):
                    return  # the broker stops, or hangs; the acts find out and say so
                tell(report)

        self._thread = threading.Thread(target=run, name="flow map", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more questions."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(REPLY_SECONDS)
        self._player.leave()


def waits_in_words(report: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Describe the cause of the waiting, then each wait; empty without one. `names`: names of addresses."""
    said = [f"bottleneck: {worst['words']}" for worst in report["bottlenecks"][:1]]
    said += [chain["words"] for chain in _longest(report["chains"])]
    return [_with_names(words, names) for words in said]


def _longest(chains: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the chains that say most; a chain that is the end of another one says nothing new."""
    inner = {edge["source_id"] for chain in chains for edge in chain["edges"][1:]}
    outer = [chain for chain in chains if chain["source_id"] not in inner]
    return (outer or list(chains))[:CHAINS_SHOWN_MAX]


def edges_of(report: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return who waits for whom, without since when: the same set as long as the picture is the same."""
    return frozenset((edge["source"], edge["sink"]) for edge in report["edges"])


def oldest_wait_seconds(report: Mapping[str, Any]) -> float:
    """Return the longest time that a client has been waiting; 0.0 if none is."""
    return max((float(edge["age_seconds"]) for edge in report["edges"]), default=0.0)


def _with_names(words: str, names: Mapping[str, str]) -> str:
    # The longest first: one address may be the beginning of another (…:4000 and …:40001).
    for address in sorted(names, key=len, reverse=True):
        words = words.replace(address, names[address])
    return words
