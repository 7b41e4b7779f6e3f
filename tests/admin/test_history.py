"""The last hour of numbers: what is kept, that it is bounded and counted, and who may see it."""

from __future__ import annotations

import pytest
import trio

from sluiceway.admin import history
from sluiceway.admin.history import POINTS_COUNT, STEP_SECONDS, Rings
from sluiceway.flow.graph import at_once
from tests.admin.conftest import AdminStage, error_of


class TestRings:
    def test_points_come_oldest_first_and_the_oldest_leave(self) -> None:
        rings = Rings(("depth_count",))
        for tick in range(POINTS_COUNT + 5):
            rings.note(tick, {"depth_count": tick})
        points = at_once(rings.read_in_steps(POINTS_COUNT + 4))["depth_count"]
        assert len(points) == POINTS_COUNT and (points[0], points[-1]) == (5, POINTS_COUNT + 4)

    def test_what_was_missed_is_unknown_not_old(self) -> None:
        rings = Rings(("depth_count",))
        for tick in range(POINTS_COUNT):
            rings.note(tick, {"depth_count": 1})
        rings.note(POINTS_COUNT + 3, {"depth_count": 2})
        assert at_once(rings.read_in_steps(POINTS_COUNT + 4))["depth_count"][-6:] == [1, None, None, None, 2, None]
        rings.note(POINTS_COUNT * 9, {"depth_count": 3})
        assert at_once(rings.read_in_steps(POINTS_COUNT * 9))["depth_count"] == [None] * (POINTS_COUNT - 1) + [3]


class TestHistory:
    async def test_rates_and_depths_of_the_broker_and_of_each_destination(self, stage: AdminStage) -> None:
        web = await stage.connect(name="web")
        kept = stage.services.history
        for round_count in (0, 30, 50):
            if round_count:
                await web.send_all("/queue/orders", range(round_count))
                await web.sync()
            at_once(kept.note_in_steps())
            await trio.sleep(STEP_SECONDS)
        found = await stage.get("history", name="/queue/orders")
        assert found["step_seconds"] == STEP_SECONDS
        assert found["series"]["depth_count"][-2:] == [30, 80]
        assert found["series"]["in_per_second"][-1] == pytest.approx(5.0, rel=0.1)
        whole = (await stage.get("history"))["series"]
        assert whole["depth_count"][-3:] == [0, 30, 80] and whole["connections_count"][-1] == 1
        assert whole["in_per_second"][-1] == pytest.approx(5.0, rel=0.1)
        assert whole["memory_bytes"][-1] > 0

    async def test_its_memory_is_counted_and_bounded(self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever did nothing for longest has no history any more, and gives its room back."""
        monkeypatch.setattr(history, "DESTINATIONS_MAX", 3)
        kept = stage.services.history
        empty_bytes = kept.controllers[0].limiter.used_bytes
        assert empty_bytes > 0
        web = await stage.connect(name="web")
        for number in range(9):
            await web.sent(f"/queue/q{number}", "x")
            at_once(kept.note_in_steps())
            await trio.sleep(STEP_SECONDS)
        assert (await stage.get("history", name="/queue/q0"))["series"] == {}
        assert (await stage.get("history", name="/queue/q8"))["series"]["depth_count"][-1] == 1
        one_bytes = history.RING_BYTES * 3 + history.OBJECTS_BYTES + len("/queue/q0")
        counts_bytes = 9 * (history.COUNTS_BYTES + len("/queue/q0"))
        assert kept.controllers[0].limiter.used_bytes == empty_bytes + 3 * one_bytes + counts_bytes
        at_once(kept.note_in_steps())  # those that do nothing keep their history, and take no other's
        assert (await stage.get("history", name="/queue/q8"))["series"]["depth_count"][-2:] == [1, 1]

    async def test_where_more_are_busy_the_first_keep_their_history(
        self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history, "DESTINATIONS_MAX", 3)
        web = await stage.connect(name="web")
        for _round in range(4):
            for number in range(5):
                await web.sent(f"/queue/q{number}", "x")
            at_once(stage.services.history.note_in_steps())
            await trio.sleep(STEP_SECONDS)
        found = [(await stage.get("history", name=f"/queue/q{number}"))["series"] for number in range(5)]
        assert [bool(series) for series in found] == [True, True, True, False, False]
        assert found[0]["depth_count"][-4:] == [1, 2, 3, 4]

    async def test_a_walk_over_many_is_made_in_many_steps(self, stage: AdminStage) -> None:
        web = await stage.connect(name="web")
        for number in range(300):
            await web.sent(f"/queue/q{number}", "x")
        assert sum(1 for _ in stage.services.history.note_in_steps()) > 300

    async def test_an_unknown_destination_has_an_empty_history(self, stage: AdminStage) -> None:
        assert (await stage.get("history", name="/queue/never"))["series"] == {}
        response = await stage.http.get("/api/v1/history", params={"nme": "x"})
        assert (response.status_code, error_of(response)) == (400, "bad-request")
