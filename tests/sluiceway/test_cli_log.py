"""`sluiceway log` against a real broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from sluiceway import EmbeddedBroker
from sluiceway.cli import main
from sluiceway.cli.log import log as log_command
from sluiceway.embedded import embedded_config
from sluiceway.store.config import StoreConfig
from sluiceway.store.log_storage import LogStorageConfig
from tests.sluiceway.broker_process import environment

pytestmark = pytest.mark.interop

PASSCODE = "let it go"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    config = attrs.evolve(embedded_config(), logs=LogStorageConfig(delete_passcode=PASSCODE))
    with EmbeddedBroker(config) as running:
        yield running


def log(broker: EmbeddedBroker, *arguments: str, input: bytes | None = None, **environment: str) -> Result:
    runner = CliRunner(env={"SLUICEWAY_URL": broker.url, **environment})
    return runner.invoke(main, ["log", *arguments], input=input)


def done(result: Result) -> str:
    """What it printed; it did what it was asked for."""
    assert result.exit_code == 0, result.output
    return result.stdout


def said(result: Result) -> Any:
    """Likewise, as JSON."""
    return json.loads(done(result))


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(result).splitlines()]


# -- append and tail ---------------------------------------------------------------------------------------------------


def test_lines_become_records_and_come_back_as_lines(broker: EmbeddedBroker) -> None:
    """Empty ones too, and a last one without a newline."""
    assert "4 records appended to /log/orders, from index 0" in done(
        log(broker, "append", "orders", input=b"one\ntwo\n\nfour")
    )
    assert done(log(broker, "tail", "/log/orders")) == "one\ntwo\n\nfour\n"
    assert "1 record appended to /log/orders, from index 4" in done(log(broker, "append", "/log/orders", input=b"5\n"))


def test_nothing_makes_no_record(broker: EmbeddedBroker) -> None:
    assert "the input is empty" in done(log(broker, "append", "orders", input=b""))
    assert said(log(broker, "list", "--json")) == {"logs": []}


def test_files_go_one_after_the_other_whole_or_by_line(broker: EmbeddedBroker, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb")
    two.write_bytes(b"c\n")
    assert "3 records" in done(log(broker, "append", "lines", str(one), str(two)))
    assert done(log(broker, "tail", "lines", "--raw")) == "abc"
    assert "2 records" in done(log(broker, "append", "files", "--whole", str(one), str(two)))
    assert [record["value"] for record in json_lines(log(broker, "tail", "files", "--json"))] == ["a\nb", "c\n"]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "zstd"])
def test_many_lines_come_back_byte_for_byte(broker: EmbeddedBroker, tmp_path: Path, compression: str) -> None:
    lines = b"".join(b"%d %b\n" % (number, b"x" * (number % 97)) for number in range(50_000))
    assert "50,000 records" in done(log(broker, "append", "many", "--compression", compression, input=lines))
    out = tmp_path / "out"
    assert done(log(broker, "tail", "many", "--from", "earliest", "--output", str(out))) == ""
    assert out.read_bytes() == lines
    assert (
        done(log(broker, "tail", "many", "--from", "123", "--to", "125"))
        == lines.decode().splitlines(True)[123] + lines.decode().splitlines(True)[124]
    )


def test_keys_headers_and_bytes_that_are_no_text(broker: EmbeddedBroker) -> None:
    input = b"k1\tone\nnone\n\xff\t\xfe\n"
    done(log(broker, "append", "orders", "--key-separator", "\\t", "-H", "kind:x", input=input))
    records = json_lines(log(broker, "tail", "orders", "--json"))
    assert [{name: record[name] for name in record if name not in ("index", "timestamp_ms")} for record in records] == [
        {"key": "k1", "headers": {"kind": "x"}, "value": "one"},
        {"headers": {"kind": "x"}, "value": "none"},
        {"key_base64": "/w==", "headers": {"kind": "x"}, "value_base64": "/g=="},
    ]
    assert [record["index"] for record in records] == [0, 1, 2]
    in_a_group = json_lines(
        log(broker, "tail", "orders", "--json", "--group", "g", "--from", "earliest", "--count", "3")
    )
    assert in_a_group == records, "also where each is a MESSAGE of its own"
    assert re.match(
        r"0  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  k1  one\n", done(log(broker, "tail", "orders", "--to", "1", "-l"))
    )


def test_tail_begins_where_it_is_told_to(broker: EmbeddedBroker) -> None:
    done(log(broker, "append", "n", input=b"".join(b"%d\n" % number for number in range(20))))

    def values(*arguments: str) -> list[int]:
        return [int(line) for line in done(log(broker, "tail", "n", *arguments)).split()]

    assert values() == list(range(10, 20))
    assert values("--from", "earliest") == list(range(20))
    assert values("--from", "-3") == [17, 18, 19]
    assert values("--from", "latest") == [19]
    assert values("--from", "next") == []
    assert values("--from", "18", "--to", "100") == [18, 19]
    assert values("--from", "ago:1h", "--count", "2") == [0, 1]
    assert values("--from", "time:2020-01-01T00:00Z", "--to", "1") == [0]
    assert values("--from", "time:0", "--to", "1") == [0]
    assert values("--from", "20") == []


def test_a_group_goes_on_where_it_was_and_takes_no_more_than_asked_for(broker: EmbeddedBroker) -> None:
    done(log(broker, "append", "n", input=b"".join(b"%d\n" % number for number in range(10))))
    first = log(broker, "tail", "n", "--group", "g", "--from", "earliest", "--count", "3")
    assert done(first) == "0\n1\n2\n"
    [group] = said(log(broker, "groups", "n", "--json"))["groups"]
    assert (group["group"], group["front"], group["lag"]) == ("g", 3, 7)
    assert (
        done(log(broker, "tail", "n", "--group", "g", "--batch", "64 KiB", "--timeout", "2")) == "3\n4\n5\n6\n7\n8\n9\n"
    )
    [group] = said(log(broker, "groups", "n", "--json"))["groups"]
    assert group["lag"] == 0, "also the last batch is acknowledged"
    short = log(broker, "tail", "n", "--group", "g", "--count", "1", "--timeout", "0")
    assert short.exit_code == 1
    assert "0 of 1 records came" in short.stderr


def test_follow_goes_on_until_ctrl_c(broker: EmbeddedBroker) -> None:
    done(log(broker, "append", "n", input=b"before\n"))
    command = [sys.executable, "-m", "sluiceway", "log", "tail", "n", "--follow", "--url", broker.url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "before\n"
            done(log(broker, "append", "n", input=b"after\n"))
            assert process.stdout.readline() == "after\n"
            process.send_signal(signal.SIGINT)
            _out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "2 records read\n")


def test_an_interrupted_append_says_what_is_there_for_certain(broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-m", "sluiceway", "log", "append", "n", "--url", broker.url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), bufsize=0
    ) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(b"one\ntwo\n")
            assert done(log_when_there(broker)) == "one\ntwo\n"
            process.send_signal(signal.SIGINT)
            _out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    assert b"2 records are in /log/n for certain" in err


def log_when_there(broker: EmbeddedBroker) -> Result:
    """The log n, when two records are in it and confirmed."""
    while True:
        result = log(broker, "describe", "n", "--json")
        if result.exit_code == 0 and json.loads(result.stdout)["next"] == 2:
            return log(broker, "tail", "n")


def test_an_append_that_a_full_disk_holds_up_says_so_and_how_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the broker's own words, and then it can be stopped."""
    from sluiceway.cli import log_append, waiting
    from sluiceway.client.address import Address

    config = embedded_config()
    config = attrs.evolve(
        config,
        broker=attrs.evolve(config.broker, data_dir=tmp_path),
        store=StoreConfig(engine="leveldb", disk_free_min_bytes=1 << 60),
    )
    say, main_thread = waiting.say_that_it_waits, threading.get_ident()

    def say_and_stop(address: Address) -> None:
        say(address)
        signal.pthread_kill(main_thread, signal.SIGINT)

    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 1.5)
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", 20)
    monkeypatch.setattr(log_append, "say_that_it_waits", say_and_stop)
    with EmbeddedBroker(config) as broker:
        result = log(broker, "append", "n", input=b"one\n")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "sluiceway: waiting: the broker has not confirmed all of it yet"
    assert lines[1] == "  store: disk low"
    assert lines[2].startswith("  bottleneck: store blocks 1 sender, ")
    assert lines[-2] == "  It resumes as soon as the broker does; Ctrl-C ends it"
    assert lines[-1] == "sluiceway: interrupted: 0 records are in /log/n for certain"


# -- looking and ordering ----------------------------------------------------------------------------------------------


def test_list_describe_and_stat_draw_logs_and_groups(broker: EmbeddedBroker) -> None:
    assert "there are no logs" in done(log(broker, "list"))
    done(log(broker, "append", "n", input=b"1\n2\n3\n"))
    assert "no group reads /log/n" in done(log(broker, "groups", "n"))
    done(log(broker, "tail", "n", "--group", "billing", "--from", "earliest", "--count", "1"))
    listed = done(log(broker, "list"))
    assert "Logs: 1" in listed
    assert "/log/n" in listed
    described = done(log(broker, "describe", "n"))
    assert "records  3, " in described
    assert "next     index 3" in described
    assert re.search(r"billing +1 +2 ", described)
    assert re.search(r"billing +1 +2 ", done(log(broker, "groups", "n")))
    stat = done(CliRunner(env={"SLUICEWAY_URL": broker.url}).invoke(main, ["stat"]))
    assert re.search(r"/log/n +3 ", stat)
    assert re.search(r"/log/n +billing +1 +2 ", stat)


def test_seek_moves_a_group(broker: EmbeddedBroker) -> None:
    done(log(broker, "append", "n", input=b"1\n2\n3\n"))
    done(log(broker, "tail", "n", "--group", "g", "--from", "earliest", "--count", "3"))
    assert "continues at index 1" in done(log(broker, "seek", "n", "g", "--to", "-2"))
    assert done(log(broker, "tail", "n", "--group", "g", "--count", "2")) == "2\n3\n"
    assert said(log(broker, "seek", "n", "g", "--to", "0", "--json")) == {"front": 0}
    done(log(broker, "delete-group", "n", "g"))
    assert said(log(broker, "groups", "n", "--json")) == {"groups": []}


def test_truncate_removes_the_oldest_and_tail_tells_of_the_gap(broker: EmbeddedBroker) -> None:
    done(log(broker, "append", "n", input=b"1\n2\n3\n"))
    assert "/log/n begins with index 2" in done(log(broker, "truncate", "n", "--before", "-1"))
    result = log(broker, "tail", "n", "--from", "0", "--json")
    gap, record = json_lines(result)
    assert gap == {"gap_from": 0, "gap_to": 2, "gap_reason": "retention"}
    assert record["index"] == 2
    assert "records 0 to 1 are gone (retention)" in result.stderr
    strict = log(broker, "tail", "n", "--from", "1", "--on-gap", "error")
    assert strict.exit_code == 1
    assert "--from 2" in strict.stderr
    assert said(log(broker, "truncate", "n", "--size", "1 GiB", "--json")) == {"first": 2}


def test_delete_asks_first_and_needs_the_passcode(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    done(log(broker, "append", "n", input=b"1\n2\n3\n"))
    assert "use --yes" in log(broker, "delete", "n").stderr
    assert "SLUICEWAY_DELETE_PASSCODE" in log(broker, "delete", "n", "--yes").stderr
    monkeypatch.setattr(import_module("sluiceway.cli.log"), "_can_ask", lambda: True)
    no = log(broker, "delete", "n", input=b"n\n")
    assert no.exit_code == 1
    assert "Delete /log/n with 3 records, " in no.stdout
    wrong = log(broker, "delete", "n", input=b"y\nwrong\n")
    assert wrong.exit_code == 5
    assert "AUTHENTICATION_FAILURE" in wrong.stderr
    assert "wrong" not in wrong.stdout
    assert "/log/n is deleted" in done(log(broker, "delete", "n", input=f"y\n{PASSCODE}\n".encode()))
    assert log(broker, "describe", "n").exit_code == 5
    done(log(broker, "append", "n", input=b"new\n"))
    deleted = log(broker, "delete", "n", "--yes", SLUICEWAY_DELETE_PASSCODE=PASSCODE)
    assert "/log/n is deleted" in done(deleted)


# -- what can't be done ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("describe", "no"), 5, "TOPIC_NOT_EXIST: there is no log /log/no\n`sluiceway log list`"),
        (("tail", "no", "--follow"), 5, "TOPIC_NOT_EXIST"),
        (("groups", "a b"), 5, "INVALID_TOPIC"),
        (("seek", "n", "no", "--to", "0"), 5, "GROUP_NOT_EXIST"),
        (("seek", "n", "no"), 2, "--to"),
        (("tail", "n", "--from", "9"), 5, "whose next index is 1"),
        (("truncate", "n", "--before", "9"), 5, "INDEX_OUT_OF_BOUNDS"),
        (("tail", "n", "--from", "yesterday"), 2, "no place in a log"),
        (("tail", "n", "--from", "time:yesterday"), 2, "is no time"),
        (("tail", "n", "--from", "ago:soon"), 2, "is not a duration"),
        (("tail", "n", "--json", "--raw"), 2, "exclude each other"),
        (("tail", "n", "--group", "g", "--to", "1"), 2, "a group has no end"),
        (("tail", "n", "--from", "10", "--to", "5"), 2, "--to 5 is before --from 10"),
        (("tail", "n", "--group", "g", "--batch", "1KiB", "--count", "1"), 2, "whole batches"),
        (("tail", "n", "--batch", "much"), 2, "is not a size"),
        (("truncate", "n"), 2, "--before or --size"),
        (("append", "n", "-H", "content-type:x"), 2, "content-type"),
        (("append", "n", "--whole", "--key-separator", ":"), 2, "--key-separator"),
        (("append", "a b"), 5, "INVALID_TOPIC"),
        (("describe", "/log/"), 2, "a log has a name"),
        (("describe", "n", "--url", "http://x"), 2, "is not a broker's address"),
    ],
)
def test_mistakes_are_named_with_a_remedy(
    broker: EmbeddedBroker, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done(log(broker, "append", "n", input=b"1\n"))
    result = log(broker, *arguments, input=b"x\n")
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert said(log(broker, "describe", "n", "--json"))["next"] == 1, "nothing was appended"


@pytest.mark.parametrize("command", [("list",), ("tail", "n"), ("append", "n")])
def test_no_broker_ends_with_4(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["log", *command, "--url", "127.0.0.1:1"], input=b"x\n")
    assert result.exit_code == 4
    assert "`sluiceway serve`" in result.stderr


def test_a_wrong_login_ends_with_5(broker: EmbeddedBroker) -> None:
    from sluiceway.config import SecurityConfig

    config = attrs.evolve(embedded_config(), security=SecurityConfig(users={"ann": "secret"}, default="allow"))
    with EmbeddedBroker(config) as guarded:
        wrong = log(guarded, "list", "--login", "ann", "--passcode", "guess")
        assert wrong.exit_code == 5
        assert "guess" not in wrong.stderr
        assert log(guarded, "list", "--login", "ann", SLUICEWAY_PASSCODE="secret").exit_code == 0
        assert log(guarded, "append", "n", "--login", "ann", "--passcode", "secret", input=b"1\n").exit_code == 0
        assert done(log(guarded, "tail", "n", "--login", "ann", "--passcode", "secret")) == "1\n"


def test_a_log_that_is_deleted_ends_its_readers(broker: EmbeddedBroker) -> None:
    done(log(broker, "append", "n", input=b"1\n"))
    readers = [
        subprocess.Popen(
            [sys.executable, "-m", "sluiceway", "log", "tail", "n", "--from", "earliest", "--url", broker.url, *how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for how in (("--follow",), ("--group", "g"))
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "1\n"
        done(log(broker, "delete", "n", "--yes", "--delete-passcode", PASSCODE))
        for reader in readers:
            _out, err = reader.communicate(timeout=30)
            assert reader.returncode == 1
            assert "was deleted" in err
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def test_every_log_command_has_examples() -> None:
    commands = log_command.commands
    for name in commands:
        text = CliRunner().invoke(main, ["log", name, "--help"]).stdout
        assert f"sluiceway log {name}" in text.replace("Usage: sluiceway log", ""), name
