"""A run of checks against one broker: which versions it speaks, the checks in some threads, cleaning up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import attrs

from sluiceway.compliance.client import Client, Entry
from sluiceway.compliance.kit import Kit, Settings
from sluiceway.compliance.registry import (
    CHECKS,
    CHOICE,
    MUST,
    Check,
    Failed,
    Result,
    Unclear,
    Unsupported,
)
from sluiceway.compliance.wire import VERSIONS

CLEANING_SECONDS_MAX: Final = 10.0
JOBS_MAX: Final = 64
AREAS: Final = (
    *("connect", "framing", "encoding", "heart-beat", "send", "message", "subscribe", "unsubscribe", "ack", "nack"),
    *("transaction", "receipt", "disconnect", "error", "command", "limits"),
)
"""Order of reports."""
HOSTILE: Final = ("limits",)


class NoBrokerError(Exception):
    """No session with the broker in any version; the message says what was tried."""


@attrs.frozen
class Outcome:
    """Result of one check."""

    check: Check
    result: Result
    reason: str = ""
    """Words on why it is not `passed`, or on the broker's choice."""
    expected: str = ""
    came: str = ""
    seconds: float = 0.0
    transcript: tuple[Entry, ...] = ()


@attrs.frozen
class Report:
    """Everything that a run found."""

    address: str
    transport: str
    server: str
    """Header `server` of CONNECTED; empty without one."""
    seed: str
    began: datetime
    seconds: float
    versions: dict[str, str]
    """Empty, or why the broker does not speak it, for each version that was asked for."""
    outcomes: tuple[Outcome, ...]
    left: str = ""
    """Words on what could not be cleaned up."""

    def count(self, result: Result) -> int:
        """Return the number of checks with this result."""
        return sum(outcome.result is result for outcome in self.outcomes)

    def broken(self, *, shoulds: bool = False) -> list[Outcome]:
        """Return the failed duties that count: MUSTs, and with `shoulds` all of them."""
        failed = [outcome for outcome in self.outcomes if outcome.result is Result.FAILED]
        return [outcome for outcome in failed if shoulds or outcome.check.level is MUST]

    def by_level(self) -> dict[str, Counter[Result]]:
        """Return results by version and level, `1.2 MUST` and so on."""
        keys = {outcome: f"{outcome.check.version} {outcome.check.level.value}" for outcome in self.outcomes}
        table: dict[str, Counter[Result]] = {key: Counter() for key in sorted(set(keys.values()))}
        for outcome, key in keys.items():
            table[key][outcome.result] += 1
        return table


def selected(
    versions: Sequence[str] = VERSIONS,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    *,
    checks: Iterable[Check] = (),
) -> list[Check]:
    """Return the checks of these versions that one of `only` means, if there are any, and none of `without`."""
    import sluiceway.compliance.checks  # noqa: F401 - registers them

    return [
        check
        for check in sorted(checks or CHECKS, key=lambda check: AREAS.index(check.area) if check.area in AREAS else -1)
        if check.version in versions
        and (not only or any(check.is_meant(pattern) for pattern in only))
        and not any(check.is_meant(pattern) for pattern in without)
    ]


def run(
    settings: Settings,
    checks: Sequence[Check],
    *,
    jobs: int = 8,
    skipped: Sequence[Check] = (),
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """Run the checks, some at a time. Raises NoBrokerError if there is no session in any of their versions."""
    began, start = datetime.now(UTC), time.monotonic()
    queues: list[str] = []
    versions: dict[str, str] = {}
    server = ""
    for version in sorted({check.version for check in checks}):
        versions[version], said = _probe(settings, version, queues)
        server = said or server
    if versions and all(versions.values()):
        raise NoBrokerError("; ".join(f"{version}: {why}" for version, why in versions.items()))
    spoken = next((each for each, why in versions.items() if not why), "")
    outcomes: list[Outcome] = []
    left: list[str] = []
    for is_hostile in (False, True):  # what may harm a broker comes last, when nothing else can suffer
        part = [check for check in checks if (check.area in HOSTILE) is is_hostile]
        try:
            outcomes += _together(
                part, jobs, lambda check: _outcome(settings, check, queues, versions[check.version], tell)
            )
        finally:
            left.append(_clean(settings, queues, spoken))
            queues.clear()
    outcomes += [Outcome(check, Result.SKIPPED, "left out by --without") for check in skipped]
    return Report(
        str(settings.target),
        settings.target.transport,
        server,
        settings.seed,
        began,
        time.monotonic() - start,
        versions,
        tuple(outcomes),
        "; ".join(filter(None, left)),
    )


def _together(checks: Sequence[Check], jobs: int, outcome: Callable[[Check], Outcome]) -> list[Outcome]:
    """Run checks in some threads."""
    with ThreadPoolExecutor(max_workers=max(1, min(jobs, JOBS_MAX)), thread_name_prefix="compliance") as pool:
        done = [pool.submit(outcome, check) for check in checks]
        try:
            return [future.result() for future in done]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _probe(settings: Settings, version: str, queues: list[str]) -> tuple[str, str]:
    """Return why there is no session in this version, or nothing; and the header `server`."""
    kit = Kit(settings, Check(f"{version}/probe/probe", version, "", CHOICE, "", lambda _kit: None), queues)
    try:
        connected = kit.connect().connected
    except (Failed, Unclear) as no:
        return str(no), ""
    finally:
        kit.close()
    assert connected is not None
    said = connected.get("version")
    if version != "1.0" and said != version:
        return f"CONNECTED says {'no version' if said is None else f'version {said}'}", connected.get("server") or ""
    if version == "1.0" and said not in (None, "1.0"):
        return f"CONNECTED says version {said} to a client that named none", connected.get("server") or ""
    return "", connected.get("server") or ""


def _outcome(
    settings: Settings, check: Check, queues: list[str], why_not: str, tell: Callable[[Outcome], None]
) -> Outcome:
    if why_not:
        found = Outcome(check, Result.UNSUPPORTED, f"the broker has no STOMP {check.version}: {why_not}")
        tell(found)
        return found
    kit = Kit(settings, check, queues)
    start = time.monotonic()
    result, reason, expected, came = Result.PASSED, "", "", ""
    try:
        check.body(kit)
        reason = kit.choice
    except Failed as failed:
        result, reason, expected, came = Result.FAILED, str(failed), failed.expected, failed.came
    except Unclear as unclear:
        result, reason = Result.UNCLEAR, str(unclear)
    except Unsupported as unsupported:
        result, reason = Result.UNSUPPORTED, str(unsupported)
    except Exception as error:  # noqa: BLE001 - a fault of one check must not end the run, and is told
        result, reason = Result.UNCLEAR, f"the check itself failed: {type(error).__name__}: {error}"
    finally:
        kit.close()
    if result is Result.FAILED and check.level is CHOICE:  # no duty, so nothing to fail
        result = Result.UNCLEAR
    seconds = time.monotonic() - start
    found = Outcome(check, result, reason, expected, came, seconds, tuple(kit.transcript.entries))
    tell(found)
    return found


def _clean(settings: Settings, queues: Sequence[str], version: str) -> str:
    """Receive what is left in the queues, over one connection; return what went wrong, or nothing."""
    if not queues or not version:
        return ""
    nothing = Check(f"{version}/cleaning/cleaning", version, "", CHOICE, "", lambda _kit: None)
    seconds = min(CLEANING_SECONDS_MAX, settings.check_seconds)
    kit = Kit(attrs.evolve(settings, check_seconds=seconds), nothing, [])
    try:
        client = kit.connect()
        for number, queue in enumerate(queues):
            client.write("SUBSCRIBE", kit.of(queue, f"clean-{number}", "auto"))
        _until_quiet(client, settings.quiet_seconds)
        client.receipted("DISCONNECT")
    except (Failed, Unclear) as error:
        return f"the {len(queues)} queues of this run may not be empty: {error}"
    finally:
        kit.close()
    return ""


def _until_quiet(client: Client, seconds: float) -> None:
    """Read until nothing came for so long."""
    while True:
        try:
            client.quiet(seconds, "nothing")
        except Failed as failed:
            if "MESSAGE" not in failed.came:
                raise
        else:
            return
