"""Parts are closed or abandoned in the reverse order of their opening, each exactly once."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel

from sluiceway.open_parts import OpenParts


class Story:
    """Opens parts, and notes what becomes of each."""

    def __init__(self, *names: str, failing: str = "") -> None:
        self.said: list[str] = []
        self.parts = OpenParts()
        for name in names:
            self._open(name, failing)

    def _open(self, name: str, failing: str) -> None:
        async def close() -> None:
            await trio.lowlevel.checkpoint()
            if name == failing:
                raise OSError(name)
            self.said.append(f"close {name}")

        def abandon() -> None:
            self.said.append(f"abandon {name}")
            if name == failing:
                raise OSError(name)

        self.parts.opened(close, abandon=abandon)


async def test_what_was_opened_last_is_closed_first() -> None:
    story = Story("a", "b")
    await story.parts.close()
    await story.parts.close()
    story.parts.abandon()
    assert story.said == ["close b", "close a"]


async def test_a_part_that_can_not_be_closed_is_abandoned_with_those_below() -> None:
    story = Story("a", "b", "c", failing="b")
    with pytest.raises(OSError, match="b"):
        await story.parts.close()
    assert story.said == ["close c"]
    with pytest.raises(OSError, match="b"):
        story.parts.abandon()
    assert story.said == ["close c", "abandon b", "abandon a"]


async def test_a_second_close_waits_for_the_first() -> None:
    story = Story("a", "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.parts.close)
        nursery.start_soon(story.parts.close)
    assert story.said == ["close b", "close a"]


async def test_a_close_that_was_cancelled_is_gone_on_with() -> None:
    story = Story("a", "b")
    with trio.CancelScope() as scope:
        scope.cancel()
        await story.parts.close()
    await story.parts.close()
    assert story.said == ["close b", "close a"]
