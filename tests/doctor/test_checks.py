"""Each check, for good and for bad: facts in, findings out, no machine in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from sluiceway.config import Config, DestinationPolicy, Listener
from sluiceway.config.former import FormerName
from sluiceway.doctor import checks
from sluiceway.doctor.facts import (
    AccessFacts,
    Certificate,
    Clock,
    Facts,
    Folder,
    Machine,
    Package,
    Port,
    Running,
    SecretFile,
    Software,
    TracingFacts,
)
from sluiceway.doctor.findings import Finding, Verdict, tell_all, worst
from sluiceway.protocols.settings import TlsConfig
from sluiceway.version import VERSION

GIB = 1024**3
MIB = 1024**2
NOW_SECONDS = 1_790_000_000.0  # September 2026
DAY_SECONDS = 86_400.0

SOFTWARE = Software(
    python=(3, 12, 1),
    python_least=(3, 11),
    executable="/usr/bin/python",
    packages=(Package(name="trio", version="0.30.0", least="0.27"),),
    binding_fault="",
)
MACHINE = Machine(
    open_files_max=65_536, open_files_hard_max=65_536, memory_bytes=16 * GIB, memory_available_bytes=8 * GIB
)
FOLDER = Folder(
    path=Path("/var/lib/sw"), exists=True, parent=Path("/var/lib/sw"), parent_is_writable=True, mode=0o700,
    file_system="ext4", free_bytes=100 * GIB, free_files=1_000_000, sync_seconds=0.002, newest_seconds=NOW_SECONDS - 5,
)  # fmt: skip
TLS_ONLY = Config(listeners=[Listener(address="0.0.0.0:61614", tls=TlsConfig(certificate=Path("server.pem")))])
NONE_RUNS = Running(url="stomp://127.0.0.1:61613", asked_for=False, fault="no broker answers")
GOOD = Facts(
    software=SOFTWARE,
    machine=MACHINE,
    clock=Clock(now_seconds=NOW_SECONDS, monotonic_went_back=False, is_synchronized=True),
    config=Config(),
    folder=FOLDER,
    ports=(Port(label="listener", address="127.0.0.1:61613", fault="", number=61613),),
    access=AccessFacts(has_users=False, plain_users=(), has_permissions=False),
    running=NONE_RUNS,
)


def found(check: checks.Check, **changes: Any) -> list[Finding]:
    return list(check(attrs.evolve(GOOD, **changes)))


def verdicts(findings: list[Finding]) -> Verdict:
    return worst(finding.verdict for finding in findings)


def folder(**changes: Any) -> Folder:
    return attrs.evolve(FOLDER, **changes)


def software(**changes: Any) -> dict[str, Any]:
    return {"software": attrs.evolve(SOFTWARE, **changes)}


def package(name: str, version: str | None, least: str, extra: str = "") -> dict[str, Any]:
    return software(packages=(Package(name=name, version=version, least=least, extra=extra),))


def clock(**changes: Any) -> dict[str, Any]:
    return {"clock": attrs.evolve(GOOD.clock, **changes)}


def listening(*addresses: str, **changes: Any) -> dict[str, Any]:
    return {"config": Config(listeners=[Listener(address=address) for address in addresses], **changes)}


FAST = {"paged_path": Path("/fast/paged")}
HELD = {"lock_is_held": True, "lock_pid": 123, "lock_host": "h"}
ANSWERS = Running(
    url="stomp://127.0.0.1:61613",
    asked_for=True,
    report={"broker": {"version": VERSION, "listeners": ["stomp://127.0.0.1:61613", "stomp://[::1]:7"]}},
)
TAKEN = Port(
    label="listener", address="127.0.0.1:61613", fault="Address already in use", in_use=True, number=61613,
    holder_pid=77, holder="other-program",
)  # fmt: skip


def certificate(**changes: Any) -> dict[str, Any]:
    it = Certificate(label="tls", path=Path("server.pem"), fault="", ends_seconds=NOW_SECONDS + 365 * DAY_SECONDS)
    return {"certificates": (attrs.evolve(it, **changes),)}


def access(**changes: Any) -> dict[str, Any]:
    return {"access": attrs.evolve(AccessFacts(has_users=True, plain_users=(), has_permissions=True), **changes)}


def store(**values: Any) -> dict[str, Any]:
    return {"running": attrs.evolve(ANSWERS, report={**ANSWERS.report, **values})}


CASES: list[tuple[checks.Check, dict[str, Any], Verdict, str]] = [
    (checks.software, {}, Verdict.OK, "all 1 that a broker needs are here"),
    (checks.software, software(python=(3, 10, 9)), Verdict.PROBLEM, "3.10.9 is older than 3.11"),
    (checks.software, package("trio", None, "0.27"), Verdict.PROBLEM, "is not installed"),
    (checks.software, package("trio", "0.9.0", "0.27"), Verdict.PROBLEM, "0.9.0 is older than 0.27"),
    (checks.software, package("pyspark", None, "4.2", "spark"), Verdict.OK, "all 0 that a broker needs"),
    (checks.software, package("pyspark", "3.5.0", "4.2", "spark"), Verdict.WARNING, "3.5.0 is older than 4.2"),
    (checks.software, software(packages=()), Verdict.WARNING, "is run from a folder"),
    (checks.software, software(binding_fault="no libleveldb"), Verdict.PROBLEM, "no libleveldb"),
    (checks.configuration, {}, Verdict.OK, "valid"),
    (
        checks.configuration,
        {"former_names": (FormerName("x.toml, line 3", "the section [journal] is now called [logs]", "rename"),)},
        Verdict.WARNING,
        "x.toml, line 3: the section [journal] is now called [logs]",
    ),
    (checks.configuration, {"config": None, "config_fault": "x.toml: brokre: unknown key"}, Verdict.PROBLEM, "brokre"),
    (
        checks.configuration,
        {"secret_files": (SecretFile(path=Path("x.toml"), what="the file of users", mode=0o644),)},
        Verdict.WARNING,
        "can be read by others (mode 644)",
    ),
    (
        checks.configuration,
        {"secret_files": (SecretFile(path=Path("x.toml"), what="the file of users", mode=0o600),)},
        Verdict.OK,
        "valid",
    ),
    (checks.folder, {}, Verdict.OK, "closed in order"),
    (checks.folder, {"folder": None}, Verdict.OK, "the store is off"),
    (checks.folder, {"folder": folder(exists=False, mode=None)}, Verdict.OK, "the first start makes it"),
    (
        checks.folder,
        {"folder": folder(exists=False, parent=Path("/var/lib"), parent_is_writable=False)},
        Verdict.PROBLEM,
        "can't be made in /var/lib",
    ),
    (checks.folder, {"folder": folder(parent_is_writable=False)}, Verdict.PROBLEM, "can't be written by this user"),
    (
        checks.folder,
        {"folder": folder(fault="it has format 9, this version knows format 1. Run that version with it")},
        Verdict.PROBLEM,
        "has format 9",
    ),
    (checks.folder, {"folder": folder(**HELD), "running": ANSWERS}, Verdict.OK, "process 123 on host h"),
    (checks.folder, {"folder": folder(**HELD)}, Verdict.WARNING, "no broker answers at stomp://127.0.0.1:61613"),
    (checks.folder, {"folder": folder(lock_pid=123, lock_host="h")}, Verdict.WARNING, "not closed in order"),
    (checks.folder, {"folder": folder(mode=0o755)}, Verdict.WARNING, "is accessible to other users (mode 755)"),
    (checks.folder, {"folder": folder(attic_count=2)}, Verdict.WARNING, "2 damaged things moved aside"),
    (checks.disk, {}, Verdict.OK, "100.0 GiB free"),
    (checks.disk, {"folder": None}, Verdict.OK, ""),
    (checks.disk, {"folder": folder(values_bytes=40 * MIB)}, Verdict.OK, "40.0 MiB of them in /var/lib/sw/values"),
    (
        checks.disk,
        {"folder": folder(paged_bytes=30 * MIB)},
        Verdict.OK,
        "30.0 MiB in /var/lib/sw/paged, left by a broker",
    ),
    (checks.disk, {"folder": folder(paged_bytes=30 * MIB, **HELD)}, Verdict.OK, "found no room in memory"),
    (checks.disk, {"folder": folder(**FAST, paged_free_bytes=9 * MIB)}, Verdict.WARNING, "9.0 MiB free on the disk of"),
    (checks.disk, {"folder": folder(**FAST, paged_free_bytes=90 * MIB)}, Verdict.OK, "own, /fast/paged: 90.0 MiB free"),
    (checks.disk, {"folder": folder(free_bytes=100 * MIB)}, Verdict.PROBLEM, "less than the reserve of 256.0 MiB"),
    (checks.disk, {"folder": folder(free_bytes=500 * MIB)}, Verdict.WARNING, "below 256.0 MiB persistent messages"),
    (checks.disk, {"folder": folder(free_files=10)}, Verdict.WARNING, "only 10 more can be made"),
    (checks.disk, {"folder": folder(free_files=None, free_bytes=None, file_system=None)}, Verdict.OK, ""),
    (checks.disk, {"folder": folder(file_system="tmpfs")}, Verdict.WARNING, "it is memory"),
    (checks.disk, {"folder": folder(file_system="nfs4")}, Verdict.WARNING, "not to be relied on"),
    (checks.disk, {"folder": folder(file_system="fuse.sshfs")}, Verdict.WARNING, "not to be relied on"),
    (checks.disk, {"folder": folder(file_system="overlay")}, Verdict.WARNING, "gone with the container"),
    (checks.disk, {"folder": folder(sync_fault="Invalid argument")}, Verdict.PROBLEM, "Invalid argument"),
    (checks.disk, {"folder": folder(sync_seconds=0.4)}, Verdict.WARNING, "takes 400 ms"),
    (checks.limits, {}, Verdict.OK, "enough for 20,000 connections"),
    (checks.limits, {"machine": attrs.evolve(MACHINE, open_files_max=1024)}, Verdict.WARNING, "824 connections"),
    (checks.limits, {"machine": attrs.evolve(MACHINE, open_files_max=256)}, Verdict.PROBLEM, "56 connections"),
    (checks.limits, {"machine": attrs.evolve(MACHINE, open_files_max=None)}, Verdict.OK, "16.0 GiB"),
    (checks.limits, {"machine": attrs.evolve(MACHINE, memory_bytes=256 * MIB)}, Verdict.PROBLEM, "may hold more than"),
    (checks.limits, {"machine": attrs.evolve(MACHINE, memory_bytes=500 * MIB)}, Verdict.WARNING, "500.0 MiB"),
    (
        checks.limits,
        {"machine": attrs.evolve(MACHINE, memory_available_bytes=90 * MIB)},
        Verdict.WARNING,
        "only 90.0 MiB of 16.0 GiB are available",
    ),
    (checks.ports, {}, Verdict.OK, "127.0.0.1:61613 is free"),
    (checks.ports, {"ports": (TAKEN,)}, Verdict.PROBLEM, "process 77 (other-program) listens there"),
    (checks.ports, {"ports": (attrs.evolve(TAKEN, holder_pid=None),)}, Verdict.PROBLEM, "is taken"),
    (
        checks.ports,
        {"ports": (TAKEN,), "running": ANSWERS, "folder": folder(**HELD)},
        Verdict.OK,
        "in use by the broker that runs",
    ),
    (checks.ports, {"ports": (TAKEN,), "running": ANSWERS}, Verdict.WARNING, "a broker that runs with another folder"),
    (
        checks.ports,
        {"ports": (attrs.evolve(TAKEN, number=1),), "folder": folder(**{**HELD, "lock_pid": 77})},
        Verdict.OK,
        "in use by the broker that runs",
    ),
    (
        checks.ports,
        {"ports": (Port(label="admin port", address="10.9.9.9:80", fault="Cannot assign requested address"),)},
        Verdict.PROBLEM,
        "can't be listened on: Cannot assign",
    ),
    (checks.safety, {}, Verdict.OK, "no other machine can connect"),
    (checks.safety, listening("0.0.0.0:61613"), Verdict.WARNING, "every client has full access"),
    (checks.safety, {**listening("0.0.0.0:61613"), **access()}, Verdict.WARNING, "in clear text"),
    (checks.safety, access(), Verdict.OK, "with hashed passcodes"),
    (checks.safety, access(plain_users=("ann",)), Verdict.WARNING, "passcodes in plain text: ann"),
    (checks.safety, access(has_permissions=False), Verdict.PROBLEM, "everything is refused"),
    (checks.safety, access(fault="group staff has a member bob\nand more"), Verdict.PROBLEM, "member bob; and more"),
    (checks.certificates, {}, Verdict.OK, ""),
    (checks.certificates, certificate(), Verdict.OK, "good until 2027-"),
    (checks.certificates, certificate(fault="server.pem: no such file"), Verdict.PROBLEM, "no such file"),
    (checks.certificates, certificate(ends_seconds=NOW_SECONDS - 1), Verdict.PROBLEM, "expired on 2026-"),
    (checks.certificates, certificate(ends_seconds=NOW_SECONDS + 7 * DAY_SECONDS), Verdict.WARNING, "in 7 d"),
    (checks.clock, {}, Verdict.OK, "kept right by this machine"),
    (checks.clock, clock(is_synchronized=None), Verdict.OK, "can't be seen from here"),
    (checks.clock, clock(is_synchronized=False), Verdict.WARNING, "nothing on this machine keeps it right"),
    (checks.clock, clock(now_seconds=0.0), Verdict.PROBLEM, "says that it is 1970"),
    (checks.clock, clock(monotonic_went_back=True), Verdict.PROBLEM, "went back"),
    (checks.clock, {"folder": folder(newest_seconds=NOW_SECONDS + 7200)}, Verdict.WARNING, "2 h newer than now"),
    (checks.tracing, {}, Verdict.OK, ""),
    (checks.tracing, {"tracing": TracingFacts(endpoint="http://t:4318", fault="")}, Verdict.OK, "can be reached"),
    (checks.tracing, {"tracing": TracingFacts(endpoint="http://t:4318", fault="refused")}, Verdict.WARNING, "refused"),
    (
        checks.tracing,
        {"tracing": TracingFacts(endpoint="http://t:4318", fault="", packages_missing="opentelemetry-sdk")},
        Verdict.PROBLEM,
        "opentelemetry-sdk is missing",
    ),
    (checks.running, {}, Verdict.OK, "none runs at"),
    (checks.running, {"running": None}, Verdict.OK, ""),
    (checks.running, {"running": None, "config": TLS_ONLY}, Verdict.OK, "--url 'stomp+ssl://HOST:61614?ca=FILE'"),
    (checks.running, {"running": attrs.evolve(NONE_RUNS, asked_for=True)}, Verdict.PROBLEM, "no broker answers"),
    (checks.running, {"running": ANSWERS}, Verdict.OK, "answers: login in"),
    (
        checks.running,
        {"running": attrs.evolve(ANSWERS, fault="the broker answered ERROR: access refused", refused=True)},
        Verdict.WARNING,
        "access refused",
    ),
    (checks.running, {"running": attrs.evolve(ANSWERS, answer_seconds=3.0)}, Verdict.WARNING, "is slow"),
    (checks.running, store(broker={"version": "0.0.1"}), Verdict.WARNING, "the broker is 0.0.1"),
    (
        checks.running,
        store(store={"state": "disk low", "error": "2 MiB left"}),
        Verdict.PROBLEM,
        "disk low: 2 MiB left",
    ),
    (checks.running, store(cycles=[{"words": "cycle: a waits on b"}]), Verdict.PROBLEM, "never resolves by itself"),
    (
        checks.running,
        store(bottlenecks=[{"words": "subscription 1 blocks 2 flows", "oldest_seconds": 100.0}]),
        Verdict.WARNING,
        "subscription 1 blocks 2 flows",
    ),
    (checks.running, store(bottlenecks=[{"words": "x", "oldest_seconds": 1.0}]), Verdict.OK, "answers"),
    (checks.running, store(hubs=[{"name": "a", "missing": None}]), Verdict.OK, "all 1 answer"),
    (
        checks.running,
        store(hubs=[{"name": "b", "missing": None, "clock_seconds": -3600.0}]),
        Verdict.WARNING,
        "the clock of b is 60 min behind that of the hub that was asked",
    ),
    (
        checks.running,
        store(hubs=[{"name": "a", "missing": None}, {"name": "b", "missing": "it is gone for 12 s", "gone": True}]),
        Verdict.PROBLEM,
        "b is missing: it is gone for 12 s",
    ),
    (
        checks.running,
        store(hubs=[{"name": "a", "missing": None, "unlinked": [{"hub": "b", "seconds": 9.0}]}]),
        Verdict.WARNING,
        "a has no link to b",
    ),
]


@pytest.mark.parametrize(
    ("check", "changes", "verdict", "said"),
    [pytest.param(*case, id=f"{case[0].__name__}-{case[2].value}-{number}") for number, case in enumerate(CASES)],
)
def test_a_check_tells_good_from_bad(check: checks.Check, changes: Any, verdict: Verdict, said: str) -> None:
    findings = found(check, **changes)
    assert verdicts(findings) is verdict, findings
    assert said in " | ".join(finding.said for finding in findings)
    for finding in findings:
        assert (finding.verdict is Verdict.OK) == (finding.remedy == ""), "what is not well has a remedy"
        assert "\n" not in finding.said


def test_every_check_has_a_good_and_a_bad_case() -> None:
    for check in checks.CHECKS:
        seen = {case[2] for case in CASES if case[0] is check}
        assert Verdict.OK in seen and len(seen) > 1, check.__name__


def test_a_machine_that_is_well_has_neither_problems_nor_warnings() -> None:
    assert verdicts(checks.check_all(GOOD)) is Verdict.OK


def test_without_a_configuration_the_rest_is_still_looked_at() -> None:
    facts = attrs.evolve(GOOD, config=None, config_fault="x", folder=None, ports=(), access=None, running=None)
    what = {finding.what for finding in checks.check_all(facts)}
    assert {"Python", "configuration", "clock"} <= what


def test_named_destinations_count_with_their_own_memory() -> None:
    big = DestinationPolicy(match="/queue/big", settings={"memory_bytes": 16 * GIB})
    some = DestinationPolicy(match="/queue/small.*", settings={"memory_bytes": 16 * MIB})
    findings = found(checks.limits, config=Config(destinations=[big, some]))
    assert verdicts(findings) is Verdict.PROBLEM
    assert "16.0 GiB for the 1 destination that you name" in findings[-1].said


def test_the_table_has_marks_and_remedies_and_the_worst_counts() -> None:
    lines: list[str] = []
    verdict = tell_all(
        [
            Finding("a", "is fine"),
            Finding("long name", "is odd", "do this", fatal=False),
            Finding("b", "is bad", "mend"),
        ],
        lines.append,
    )
    assert verdict is Verdict.PROBLEM
    assert lines == [
        " ✓ a:         is fine",
        " ! long name: is odd",
        "              do this",
        " ✗ b:         is bad",
        "              mend",
    ]
