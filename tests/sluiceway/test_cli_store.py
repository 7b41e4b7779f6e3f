"""`sluiceway store`: the commands on a real folder, what they print, and how they end."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli import main
from sluiceway.cli.progress import QUIET_SECONDS, Display, shown
from sluiceway.cli.serve import _display as display_while_reading
from sluiceway.data_folder import open_data_folder
from sluiceway.store import keys
from sluiceway.store.engine import Change, EngineFailedError, delete, put
from sluiceway.store.maintenance.opening import open_store
from tests.sluiceway.broker_process import BrokerProcess


def run(*arguments: str, input: str | bytes | None = None, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["store", *arguments], input=input)


def lines(*bodies: str, destination: str = "/queue/a", first_number: int = 1) -> str:
    made: list[dict[str, Any]] = [
        {"line": "header", "export": "sluiceway", "format": 1, "token": "k7q2", "next_number": first_number + 100}
    ]
    for place, body in enumerate(bodies):
        headers = f"destination:{destination}\npersistent:true"
        made.append(
            {
                "line": "message",
                "destination": destination,
                "kind": "queue",
                "priority": 4,
                "sequence": place,
                "number": first_number + place,
                "dialect": 2,
                "headers": headers,
                "body": body,
            }
        )
    made.append({"line": "end", "messages": len(bodies), "subscriptions": 0})
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with three messages."""
    path = tmp_path / "data"
    result = run("import", "-", "--data", str(path), input=lines("one", "two", "three"))
    assert result.exit_code == 0, result.output
    return path


def change(folder: Path, *changes: Change) -> None:
    with open_store(folder) as opened:
        opened.engine.write(changes, sync=True)


def damaged(folder: Path) -> None:
    """One bit of the chunk."""
    with open_store(folder) as opened:
        value = opened.engine.get(keys.chunk_key(1, 0))
        assert value is not None
        opened.engine.write([put(keys.chunk_key(1, 0), value[:-9] + b"?" + value[-8:])], sync=True)


COMMANDS = ("check", "repair", "export", "import", "compact")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"sluiceway store {command}" in result.output.split("Example", 1)[1]


def test_the_group_says_which_folder_it_means() -> None:
    output = run("--help").output
    assert all(f"\n  {command} " in output for command in COMMANDS)
    assert "./sluiceway-data" in output


# -- which folder ------------------------------------------------------------------------------------------------------


def arguments_of(command: str) -> list[str]:
    return ["import", "-"] if command == "import" else [command]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_in_use_is_refused(folder: Path, command: str) -> None:
    with open_store(folder):
        result = run(*arguments_of(command), "--data", str(folder), input=lines())
    assert result.exit_code == 6
    assert f"{folder} is in use by process" in result.stderr
    assert "Stop that broker" in result.stderr


@pytest.mark.parametrize("command", ["check", "repair", "export", "compact"])
def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path: Path, command: str) -> None:
    result = run(command, "--data", str(tmp_path / "nothing"))
    assert result.exit_code == 6
    assert f"there is no data folder {tmp_path / 'nothing'}" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_another_format_is_refused(folder: Path, command: str) -> None:
    (folder / "format").write_text("sluiceway-store 7\n")
    result = run(*arguments_of(command), "--data", str(folder), input=lines())
    assert result.exit_code == 6
    assert (
        "has format 7, this version of Sluiceway knows formats 1 to 2: it was made by a later version" in result.stderr
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_may_not_be_looked_into_is_named(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imitated: root may look everywhere."""
    real_stat = Path.stat

    def refuse(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real_stat(path, follow_symlinks=follow_symlinks)

    # pathlib's own way to find out differs from one version of Python to the next.
    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "exists", lambda path: bool(path.stat()))
    result = run(*arguments_of(command), "--data", str(folder), input=lines())
    assert result.exit_code == 6
    assert f"the data folder {folder} can't be" in result.stderr
    assert f"Give user {os.geteuid()} the right" in result.stderr


def test_the_folder_comes_from_the_configuration(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'[broker]\ndata_dir = "{folder}"\n')
    assert "3 messages" in run("check", "--config", str(file)).stdout
    assert "3 messages" in run("check", SLUICEWAY_BROKER__DATA_DIR=str(folder)).stdout
    assert (
        "3 messages" in run("check", "--data", str(folder), SLUICEWAY_BROKER__DATA_DIR=str(tmp_path / "other")).stdout
    )
    file.write_text("[brokre]\n")
    assert run("check", "--config", str(file)).exit_code == 2


# -- check and repair --------------------------------------------------------------------------------------------------


def test_check_counts_and_finds_nothing_wrong(folder: Path) -> None:
    result = run("check", "--data", str(folder))
    assert result.exit_code == 0
    assert f"{folder}: 3 messages, 1 queue, 0 durable subscriptions, " in result.stdout
    assert "/queue/a" in result.stdout
    assert result.stdout.endswith("no faults\n")


def test_check_knows_what_a_killed_broker_paged_out(folder: Path) -> None:
    """It is no fault; compact removes it, as the next start does."""
    (folder / "paged").mkdir(exist_ok=True)
    for number in range(2):
        (folder / "paged" / f"{number}.pages").write_bytes(bytes(512))
    result = run("check", "--data", str(folder))
    assert result.exit_code == 0
    assert f"note: 2 files of 1.0 KiB in {folder / 'paged'}: messages that were not persistent" in result.stdout
    assert json.loads(run("check", "--data", str(folder), "--json").stdout)["paged_bytes"] == 1024
    assert run("compact", "--data", str(folder)).exit_code == 0
    assert json.loads(run("check", "--data", str(folder), "--json").stdout)["paged_bytes"] == 0


def test_check_gives_json(folder: Path) -> None:
    report = json.loads(run("check", "--data", str(folder), "--json").stdout)
    [queue] = report["queues"]
    assert (queue["name"], queue["kind"], queue["messages_count"]) == ("/queue/a", "queue", 3)
    assert (report["faults_count"], report["faults"], report["complete"]) == (0, [], True)


def test_faults_end_check_with_7(folder: Path) -> None:
    damaged(folder)
    result = run("check", "--data", str(folder))
    assert result.exit_code == 7
    assert "1 fault, 3 messages lost by them\n  /queue/a: chunk from 0: its checksum is" in result.stdout
    assert "sluiceway store repair --dry-run" in result.stdout
    result = run("check", "--data", str(folder), "--json")
    assert result.exit_code == 7
    [fault] = json.loads(result.stdout)["faults"]
    assert (fault["kind"], fault["lost_count"]) == ("corrupt-chunk", 3)


def test_repair_says_what_it_would_do_and_then_does_it(folder: Path) -> None:
    damaged(folder)
    result = run("repair", "--data", str(folder), "--dry-run")
    assert result.exit_code == 7
    assert "    repair: moved to quarantine; its messages are lost" in result.stdout
    assert "nothing was done: this was a dry run. Copy the folder before" in result.stdout
    assert list((folder / "attic").iterdir()) == []
    result = run("repair", "--data", str(folder))
    assert result.exit_code == 0
    assert f"1 fault repaired; 1 record moved to quarantine, {folder / 'attic'}" in result.stdout
    assert result.stdout.endswith("the store is whole now, with 0 messages\n")
    assert len(list((folder / "attic").iterdir())) == 1
    assert run("repair", "--data", str(folder)).stdout == f"{folder}: nothing is wrong, and nothing was done\n"
    assert run("check", "--data", str(folder)).exit_code == 0


def test_repair_ends_with_7_if_faults_are_left(folder: Path) -> None:
    with open_store(folder) as opened:
        value = opened.engine.get(keys.queue_key(1))
    assert value is not None
    change(folder, put(keys.queue_key(2), value), delete(keys.summary_key(1, 0)))
    result = run("repair", "--data", str(folder))
    assert result.exit_code == 7
    assert "1 fault repaired" in result.stdout
    assert "1 fault left:" in result.stdout
    assert "`sluiceway store export` and `import` into a new folder put it in order" in result.stdout


def test_repair_says_what_to_do_about_what_it_can_not_mend(folder: Path) -> None:
    """Once, and not again as what is left."""
    with open_store(folder) as opened:
        value = opened.engine.get(keys.queue_key(1))
    assert value is not None
    change(folder, put(keys.queue_key(2), value))
    result = run("repair", "--data", str(folder))
    assert result.exit_code == 7
    assert result.stdout.count("`sluiceway store export` and `import` into a new folder") == 1
    assert "0 faults repaired\nthese faults can't be repaired: see the remedies above" in result.stdout


def test_a_table_that_was_cut_off_is_damage_that_a_repair_mends(folder: Path) -> None:
    """LevelDB calls it an IO error, and so check, repair and broker once had no remedy but to look at the disk."""
    run("compact", "--data", str(folder))
    for table in (folder / "db").glob("*.ldb"):
        table.write_bytes(table.read_bytes()[:-100])
    result = run("check", "--data", str(folder))
    assert result.exit_code == 7
    assert "LevelDB found damage" in result.stdout
    result = run("repair", "--data", str(folder))
    assert result.exit_code == 0
    assert "the store is whole now, with 0 messages\n(LevelDB does not say how many" in result.stdout
    assert run("check", "--data", str(folder)).exit_code == 0


def test_compact_removes_what_a_broker_that_died_had_paged_out(folder: Path) -> None:
    paged = folder / "paged"
    paged.mkdir(exist_ok=True)
    (paged / "0.pages").write_bytes(bytes(3 << 20))
    result = run("compact", "--data", str(folder))
    assert result.exit_code == 0
    assert "3" in result.stdout.split(" before")[0].rsplit(":", 1)[1] and list(paged.iterdir()) == []


def test_repair_mends_a_database_that_does_not_open(folder: Path) -> None:
    run("compact", "--data", str(folder))
    (folder / "db" / "CURRENT").unlink()
    result = run("check", "--data", str(folder))
    assert result.exit_code == 7
    assert "LevelDB could not read on" in result.stdout
    result = run("repair", "--data", str(folder))
    assert result.exit_code == 0
    assert "it was repaired" in result.stdout
    assert "0 faults" not in result.stdout, "one was, by LevelDB"
    assert "3 messages" in run("check", "--data", str(folder)).stdout


# -- export and import -------------------------------------------------------------------------------------------------


def test_an_export_to_standard_output_is_what_was_imported(folder: Path) -> None:
    result = run("export", "--data", str(folder))
    assert result.exit_code == 0
    assert result.stdout == lines("one", "two", "three")
    assert result.stderr == "exported 3 messages and 0 durable subscriptions\n"


def test_an_export_of_nothing_names_the_pattern_that_was_meant(folder: Path) -> None:
    result = run("export", "--data", str(folder), "--queue", "/queu/a")
    assert result.exit_code == 0
    assert "--queue '/queu/a' matches nothing: did you mean /queue/a?" in result.stderr


@pytest.mark.parametrize("name", ["backup.jsonl", "backup.jsonl.gz"])
def test_a_file_goes_out_and_comes_back(folder: Path, tmp_path: Path, name: str) -> None:
    file, copy = tmp_path / name, tmp_path / "copy"
    assert run("export", "--data", str(folder), "--output", str(file)).exit_code == 0
    data = file.read_bytes()
    assert (gzip.decompress(data) if name.endswith(".gz") else data).decode() == lines("one", "two", "three")
    result = run("import", str(file), "--data", str(copy))
    assert result.exit_code == 0
    assert result.stdout == (
        f"  /queue/a, priority 4: 3 messages\n{copy}: imported 3 messages and 0 durable subscriptions\n"
    )
    assert run("export", "--data", str(copy), "--output", str(file)).exit_code == 0
    assert file.read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["copy", "data", name])


def test_only_some_destinations_go_out(folder: Path) -> None:
    run("import", "-", "--data", str(folder), input=lines("x", destination="/queue/b.c", first_number=300))
    assert '"messages":1' in run("export", "--data", str(folder), "--queue", "/queue/b.>").stdout
    assert '"messages":3' in run("export", "--data", str(folder), "--queue", "a").stdout
    assert '"messages":4' in run("export", "--data", str(folder), "--queue", "a", "--queue", "b.*").stdout
    result = run("export", "--data", str(folder), "--queue", "/queue/>.a")
    assert result.exit_code == 2
    assert "must be the last level" in result.stderr


def test_an_export_that_leaves_something_out_ends_with_7(folder: Path, tmp_path: Path) -> None:
    damaged(folder)
    result = run("export", "--data", str(folder), "--output", str(tmp_path / "out"))
    assert result.exit_code == 7
    assert "left out: /queue/a: chunk from 0" in result.stderr
    assert '"messages":0' in (tmp_path / "out").read_text()


def test_an_export_that_can_not_be_written_leaves_the_old_one(folder: Path, tmp_path: Path) -> None:
    result = run("export", "--data", str(folder), "--output", str(tmp_path / "nowhere" / "out"))
    assert result.exit_code == 2
    assert f"there is no folder {tmp_path / 'nowhere'}: make it first" in result.stderr
    result = run("export", "--data", str(folder), "--output", str(tmp_path))
    assert result.exit_code == 2
    assert f"{tmp_path} is a folder: name a file in it" in result.stderr
    (tmp_path / "out.part").mkdir()
    result = run("export", "--data", str(folder), "--output", str(tmp_path / "out"))
    assert result.exit_code == 6
    assert "the export could not be written" in result.stderr


def test_a_folder_is_no_export_and_makes_no_store(tmp_path: Path) -> None:
    result = run("import", str(tmp_path), "--data", str(tmp_path / "data"))
    assert result.exit_code == 2
    assert f"{tmp_path} is a folder: name the file" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_import_goes_behind_what_is_there(folder: Path) -> None:
    result = run("import", "-", "--data", str(folder), input=lines("four"))
    assert result.exit_code == 0
    assert "  /queue/a, priority 4: 1 message, behind existing messages\n" in result.stdout
    assert "1 message with new message-ids: theirs may have been used" in result.stdout
    rows = [json.loads(line) for line in run("export", "--data", str(folder)).stdout.splitlines()]
    assert [row["body"] for row in rows if row["line"] == "message"] == ["one", "two", "three", "four"]


def test_a_dry_run_of_an_import_says_what_it_would_do(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text(lines("one"))
    result = run("import", str(file), "--dry-run", "--data", str(tmp_path / "data"))
    assert result.exit_code == 0
    assert "would import 1 message and 0 durable subscriptions" in result.stdout
    assert not (tmp_path / "data").exists()


def test_a_damaged_file_imports_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text(lines("four").replace('"line":"end"', '"line":"and"'))
    result = run("import", str(file), "--data", str(folder))
    assert result.exit_code == 7
    assert f"{file} can't be imported: line 3: there are no 'and' lines" in result.stderr
    assert "The lines before" not in result.stderr
    assert "3 messages" in run("check", "--data", str(folder)).stdout


@pytest.mark.parametrize(
    ("header", "body", "said"),
    [
        ("content-length:5", "four", "line 2: the headers say content-length:5, the body has 4 bytes"),
        ("x:y", "fo\0ur", "line 2: the body holds a NUL: add its content-length"),
        ("content-length:4", "four", None),
        ("content-length:5", "fo\0ur", None),
    ],
)
def test_a_body_has_the_length_that_its_headers_say(folder: Path, header: str, body: str, said: str | None) -> None:
    """Otherwise its consumers would lose step with the stream."""
    text = lines(body).replace("persistent:true", f"persistent:true\\n{header}")
    result = run("import", "-", "--data", str(folder), input=text)
    assert result.exit_code == (7 if said else 0), result.output
    assert said is None or said in result.stderr


def test_a_packed_file_that_was_cut_off_imports_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.gz"
    file.write_bytes(gzip.compress(lines("four" * 1000).encode())[:-20])
    result = run("import", str(file), "--data", str(folder))
    assert result.exit_code == 7
    assert "is damaged or was cut off" in result.stderr
    assert "3 messages" in run("check", "--data", str(folder)).stdout


def test_packed_lines_come_through_a_pipe_too(folder: Path) -> None:
    result = run("import", "-", "--data", str(folder), input=gzip.compress(lines("four").encode()))
    assert result.exit_code == 0, result.output
    assert "4 messages" in run("check", "--data", str(folder)).stdout


def test_a_file_that_is_not_there_is_wrong_usage(folder: Path) -> None:
    result = run("import", "nothing.jsonl", "--data", str(folder))
    assert result.exit_code == 2
    assert "nothing.jsonl can't be read" in result.stderr


# -- compact -----------------------------------------------------------------------------------------------------------


def test_compact_says_the_size_before_and_after(folder: Path) -> None:
    change(folder, *[put(keys.paged_key(1, 5000 + place), bytes(100_000)) for place in range(50)])
    result = run("compact", "--data", str(folder))
    assert result.exit_code == 0
    before, after = result.stdout.removeprefix(f"{folder}: ").split(" before, ")
    assert before.endswith("MiB")
    assert after.endswith("KiB now\n")


# -- beside a broker ---------------------------------------------------------------------------------------------------


@pytest.mark.interop
def test_a_broker_and_the_tools_take_turns(folder: Path, tmp_path: Path) -> None:
    """What was imported is received, and a running broker keeps its folder."""
    with BrokerProcess(tmp_path, "--data", str(folder)) as broker:
        result = run("export", "--data", str(folder))
        assert result.exit_code == 6
        assert f"in use by process {broker.process.pid}" in result.stderr
        url = f"stomp://{broker.address[0]}:{broker.address[1]}"
        received = CliRunner().invoke(main, ["receive", "/queue/a", "--count", "2", "--url", url])
        assert received.stdout == "one\ntwo\n"
        broker.kill()
    result = run("check", "--data", str(folder))
    assert result.exit_code == 0
    assert "note: the last broker did not stop cleanly" in result.stdout
    rows = [json.loads(line) for line in run("export", "--data", str(folder)).stdout.splitlines()]
    assert "three" in [row["body"] for row in rows if row["line"] == "message"]


# -- progress ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Standard error is a terminal, from the call on: pytest's capture puts its own there before."""

    def begin() -> Terminal:
        monkeypatch.setenv("TERM", "xterm")
        made = Terminal()
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return begin


def test_nothing_is_shown_where_nobody_looks() -> None:
    with shown("working") as tell:
        assert tell is None


def test_quick_work_shows_nothing(terminal: Callable[[], Terminal]) -> None:
    screen = terminal()
    with shown("working") as tell:
        assert tell is not None
        tell(1, 2)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("unit", "total", "said"), [("messages", 400, "messages"), ("bytes", 400, "bytes")])
def test_long_work_shows_how_far_it_is(terminal: Callable[[], Terminal], unit: str, total: int, said: str) -> None:
    screen = terminal()
    now_seconds = 0.0
    with Display("checking", unit, clock=lambda: now_seconds) as display:
        for done in (100, 200, 300):
            now_seconds += QUIET_SECONDS
            display.tell(done, total)
    display.tell(400, total)
    assert "checking" in screen.getvalue()
    assert said in screen.getvalue()


def test_work_without_an_end_in_sight_counts(terminal: Callable[[], Terminal]) -> None:
    screen = terminal()
    now_seconds = 0.0
    display = Display("reading the store", clock=lambda: now_seconds)
    now_seconds = 1.0
    display.tell(12_345)
    display.close()
    display.close()
    assert "12,345 messages" in screen.getvalue()


def test_serve_shows_how_far_it_has_read(terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.cli.progress.QUIET_SECONDS", 0.0)
    screen = terminal()
    tell = display_while_reading()
    tell(5_000_000)
    tell(None)
    tell(6_000_000)
    assert "5,000,000 messages" in screen.getvalue()
    assert "6,000,000" not in screen.getvalue()


async def test_whoever_asks_is_told_how_far_the_store_is_read(folder: Path) -> None:
    told: list[int | None] = []
    house = await open_data_folder(folder, "leveldb", on_progress=told.append)
    assert house is not None
    house.abandon()
    assert told == [3, None]


async def test_it_is_told_that_reading_is_over_also_when_it_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> NoReturn:
        raise EngineFailedError("no disk")

    monkeypatch.setattr("sluiceway.data_folder.recover", fail)
    told: list[int | None] = []
    with pytest.raises(EngineFailedError):
        await open_data_folder(folder, "leveldb", on_progress=told.append)
    assert told == [None]
    open_store(folder).close()
