"""Questions of one hub to another with deadlines, over `calls`: for those who look at a cluster, and would not wait for
a hub that is gone.

With each question goes a call that is answered at once: the sign of life. Who asks waits `SIGN_SECONDS` for the sign,
and as long as it likes for the answer, and so tells a hub that is busy from one that stands or is gone.

Bounds: those of `calls`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from sluiceway.cluster.calls import MISTAKE, NO_HUB, Answered, Calls, Head
from sluiceway.cluster.ownership import GoneHub
from sluiceway.flow.words import age_in_words
from sluiceway.protocols.stomp.placement import Home

SIGN_SECONDS: Final = 1.0
"""Time in which a hub that lives has shown a sign of it."""
ANSWER_SECONDS: Final = 10.0
SIGN: Final = "sign of life"
NO_LINK: Final = "there is no link to it"


class NoAnswerError(Exception):
    """A hub gave no answer. The message says why, and can stand behind its name: `hub-2: …`."""


@attrs.frozen
class Answer:
    """An answer: facts, and a body."""

    facts: Mapping[str, Any]
    body: bytes = b""


Handler = Callable[[Mapping[str, Any], bytes], Awaitable[Answer]]
"""Answers one question, from its facts and its body. What it raises is a mistake of this hub."""


@attrs.define(eq=False)
class _Question:
    """One question, as far as it is answered."""

    signed: trio.Event = attrs.field(factory=trio.Event)
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Answer = Answer({})
    why_not: str = ""

    def sign(self, head: Head, _body: bytes) -> None:
        """Take the sign of life, or why there is none."""
        if "error" in head:
            self.fail(head)
        self.signed.set()

    def take(self, head: Head, body: bytes) -> None:
        """Take the answer, or why there is none."""
        if "error" in head:
            self.fail(head)
        else:
            self.answer = Answer(head, body)
        self.signed.set()
        self.done.set()

    def fail(self, head: Head) -> None:
        """Take the reason why there is no answer."""
        why_not = NO_LINK if head["error"] == NO_HUB else str(head.get("message", head["error"]))
        self.why_not = self.why_not or why_not
        self.done.set()


class Questions:
    """Questions of one hub to the others, and theirs to it."""

    def __init__(
        self,
        calls: Calls,
        others: Callable[[], Iterable[str]],
        *,
        gone: Callable[[], Mapping[str, GoneHub]] = dict,
        unlinked_seconds: Callable[[], Mapping[str, float]] = dict,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
    ) -> None:
        """`others`: ids of all other hubs that live; `gone`: those that do not, and are to; `unlinked_seconds`: time
        for which there is no link to a hub that lives; `spawn` starts a task that lives no longer than the broker;
        `contain` is given mistakes of a handler.
        """
        self._calls = calls
        self._others = others
        self._gone = gone
        self._unlinked_seconds = unlinked_seconds
        self._spawn = spawn
        self._contain = contain
        calls.serve(SIGN, _give_sign)

    @property
    def others(self) -> list[str]:
        """Ids of all other hubs that live, in order."""
        return sorted(self._others())

    @property
    def known(self) -> list[str]:
        """Ids of all other hubs that are to be there, in order: those that are gone have no answer. O(shards)."""
        return sorted({*self._others(), *self._gone()})

    def absences(self) -> dict[str, dict[str, Any]]:
        """Return what is known of hubs that can't answer, by id: whether one is `gone`, for how long it is away
        (`missing_seconds`), and which shards wait for it (`shards_waiting`). O(shards).
        """
        found: dict[str, dict[str, Any]] = {
            hub: {"gone": False, "missing_seconds": seconds, "shards_waiting": []}
            for hub, seconds in self._unlinked_seconds().items()
        }
        for hub, gone in self._gone().items():
            found[hub] = {"gone": True, "missing_seconds": gone.seconds, "shards_waiting": list(gone.shards)}
        return found

    # ------------------------------------------------------------------ asking

    async def ask(
        self, hub: str, what: str, facts: Mapping[str, Any], body: bytes = b"", *, seconds: float = ANSWER_SECONDS
    ) -> Answer:
        """Return the answer of a hub. Raises NoAnswerError if it is not there, shows no sign of life within a second,
        or has not answered within `seconds`.
        """
        gone = self._gone().get(hub)
        if gone is not None:
            raise NoAnswerError(gone.words)
        question = _Question()
        place = partial(_same, Home(hub))
        self._calls.ask(place, SIGN, {}, b"", question.sign, wait_seconds=0)
        self._calls.ask(place, what, facts, body, question.take, wait_seconds=0)
        with trio.move_on_after(SIGN_SECONDS):
            await question.signed.wait()
        if not question.signed.is_set():
            raise NoAnswerError(f"it has not answered within {SIGN_SECONDS:g} s")
        with trio.move_on_after(seconds):
            await question.done.wait()
        if not question.done.is_set():
            raise NoAnswerError(f"it is there, but has not answered within {seconds:g} s")
        if question.why_not:
            since_seconds = self._unlinked_seconds().get(hub) if question.why_not == NO_LINK else None
            since = "" if since_seconds is None else f", for {age_in_words(since_seconds)}"
            raise NoAnswerError(f"{question.why_not}{since}")
        return question.answer

    # ------------------------------------------------------------------ answering

    def takes(self, what: str, handler: Handler) -> None:
        """Have a handler answer the questions of this name."""

        def serve(_peer_hub: str, head: Head, body: bytes, answered: Answered) -> None:
            self._spawn(partial(self._answer, handler, head, body, answered))

        self._calls.serve(what, serve)

    async def _answer(self, handler: Handler, head: Head, body: bytes, answered: Answered) -> None:
        try:
            answer = await handler(head, body)
        except Exception as error:  # noqa: BLE001 - the outermost shell of one question
            self._contain(error)
            answered({"error": MISTAKE, "message": "it made a mistake with the question: its log says more"}, b"")
        else:
            answered(answer.facts, answer.body)


def _give_sign(_peer_hub: str, _head: Head, _body: bytes, answered: Answered) -> None:
    answered({}, b"")


def _same(home: Home) -> Home:
    return home
