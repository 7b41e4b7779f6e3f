"""Our broker keeps every MUST and SHOULD that the kit knows, over each transport."""

from __future__ import annotations

import pytest

from sluiceway.compliance.registry import CHOICE, Level, Result
from sluiceway.compliance.running import Report, run, selected
from sluiceway.compliance.text import text
from tests.compliance.conftest import Addresses, settings


def _kept(report: Report) -> None:
    failed = [outcome for outcome in report.outcomes if outcome.result is Result.FAILED]
    assert not failed, text(report)
    unclear = [each.check.name for each in report.outcomes if each.result is Result.UNCLEAR]
    assert not unclear, text(report)
    assert not report.left


def test_every_duty_is_kept_over_tcp(addresses: Addresses) -> None:
    checks = selected()
    report = run(settings(addresses.plain), checks, jobs=24)
    _kept(report)
    assert report.server.startswith("sluiceway/")
    assert len(report.outcomes) == len(checks) > 400
    not_asked = {each.check.name for each in report.outcomes if each.result is not Result.PASSED}
    assert {name.partition("/")[2] for name in not_asked} == {"connect/wrong-passcode"}, "no users are configured"


@pytest.mark.parametrize("transport", ["tls", "web"])
def test_every_duty_of_1_2_is_kept_over_tls_and_websocket(addresses: Addresses, transport: str) -> None:
    address = addresses.tls if transport == "tls" else addresses.web
    options = {"ca": addresses.ca} if transport == "tls" else {}
    report = run(settings(address, **options), selected(["1.2"], without=["limits", "heart-beat"]), jobs=24)
    _kept(report)
    assert report.transport == {"tls": "TLS", "web": "WebSocket"}[transport]


def test_choices_are_told(addresses: Addresses) -> None:
    report = run(settings(addresses.plain), selected(["1.2"], only=["ack/unknown", "disconnect/closes"]))
    told = {each.check.name: each.reason for each in report.outcomes}
    assert told["1.2/ack/unknown"].startswith("ERROR (")
    assert told["1.2/disconnect/closes"] == "closes"


def test_names_are_unique_and_every_level_is_used() -> None:
    checks = selected()
    assert len({check.name for check in checks}) == len(checks)
    assert {check.level for check in checks} == set(Level)
    assert all(check.duty.endswith(".") for check in checks)
    assert [check for check in checks if check.level is CHOICE and check.version == "1.2"]
