"""`sluiceway store` on a database: what reads disturbs no broker, what writes needs a shard that none has."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli import main
from sluiceway.cli.exits import Exit
from sluiceway.queues.shard_hash import first_number, shard_of
from sluiceway.store import keys
from sluiceway.store.engine import put
from sluiceway.store.postgresql import PostgresqlEngine
from sluiceway.store.postgresql_cluster import ClusterRow, make
from sluiceway.store.states import decode_numbers
from tests.postgresql_server import server
from tests.sluiceway.test_cli_store import lines

Run = Callable[..., Result]


@pytest.fixture
def url() -> str:
    return server().new_schema()


@pytest.fixture
def run(url: str, tmp_path: Path) -> Run:
    """Run a command with the configuration of a broker on the database."""
    config = tmp_path / "sluiceway.toml"
    config.write_text(f'[store]\nengine = "postgresql"\nurl = "{url}"\n')

    def store(*arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, ["store", *arguments, "--config", str(config)], input=input)

    return store


def with_large_body(size_bytes: int) -> str:
    """An export with one large message, in pieces."""
    body = bytes(range(256)) * (size_bytes // 256)
    head: dict[str, object] = {
        "line": "message", "destination": "/queue/large", "kind": "queue", "priority": 4, "sequence": 0, "number": 1,
        "dialect": 2, "headers": f"destination:/queue/large\npersistent:true\ncontent-length:{len(body)}",
        "body_bytes": len(body),
    }  # fmt: skip
    pieces = [body[at : at + 196_608] for at in range(0, len(body), 196_608)]
    made: list[dict[str, object]] = [
        {"line": "header", "export": "sluiceway", "format": 1, "token": "k7q2", "next_number": 100},
        head,
    ]
    made += [{"line": "body", "base64": base64.b64encode(piece).decode()} for piece in pieces]
    made.append({"line": "end", "messages": 1, "subscriptions": 0})
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in made)


def test_what_is_exported_is_imported_and_checked(run: Run, tmp_path: Path) -> None:
    taken = run("import", "-", input=lines("one", "two", "three"))
    assert taken.exit_code == 0, taken.output
    assert "database postgres, user postgres: imported 3 messages" in taken.stdout
    checked = run("check")
    assert checked.exit_code == 0 and "3 messages, 1 queue" in checked.stdout and "no faults" in checked.stdout
    output = str(tmp_path / "all.jsonl.gz")
    exported = run("export", "--output", output)
    assert exported.exit_code == 0 and "exported 3 messages" in exported.output
    into_folder = CliRunner().invoke(main, ["store", "import", output, "--data", str(tmp_path / "data")])
    assert "imported 3 messages" in into_folder.stdout, "a folder takes what a database gives"


def test_large_bodies_are_exported_and_imported_in_pieces(run: Run, url: str) -> None:
    text = with_large_body(768 * 1024)
    taken = run("import", "-", input=text)
    assert taken.exit_code == 0, taken.output
    assert "no faults" in run("check").stdout
    assert run("export").stdout.splitlines()[1:-1] == text.splitlines()[1:-1]
    with closing(PostgresqlEngine(url)) as engine:
        (key,) = engine.iterate_keys(*keys.family_range(keys.BODY))
        engine.write([(1, key, b"")], sync=True)
    checked = run("check")
    assert checked.exit_code == Exit.FAULTY and "a large body has 0 bytes, not 786432" in checked.stdout
    assert "pg_dump" in checked.stdout


def test_a_broker_on_the_database_is_not_disturbed_by_what_only_reads(run: Run, url: str) -> None:
    run("import", "-", input=lines("one", "two"))
    with closing(PostgresqlEngine(url)) as broker:
        assert "2 messages" in run("check").stdout
        assert run("export").exit_code == 0
        assert "would import 1 message" in run("import", "-", "--dry-run", input=lines("three")).stdout
        broker.write([put(b"\x00mark", b"1")], sync=True)
        refused = run("import", "-", input=lines("three"))
        assert refused.exit_code == Exit.STORE and "is in use by" in refused.output
        broker.write([put(b"\x00mark", b"2")], sync=True)


def test_shards_of_a_cluster_are_checked_together_and_filled_one_by_one(run: Run, url: str) -> None:
    make(url, ClusterRow("5f0c9a1e", "orders", "/sluiceway/orders", 4))
    shard = shard_of("/queue/a", 4)
    unclear = run("import", "-", input=lines("one"))
    assert unclear.exit_code == Exit.USAGE and "has 4 shards: name one" in unclear.output
    wrong = run("import", "-", "--shard", str((shard + 1) % 4), input=lines("one"))
    assert wrong.exit_code == Exit.FAULTY and f"belongs to shard {shard} of 4" in wrong.output
    strange = run("check", "--shard", "4")
    assert strange.exit_code == Exit.USAGE and "there is no shard 4" in strange.output
    taken = run("import", "-", "--shard", str(shard), input=lines("one"))
    assert taken.exit_code == 0 and f"shard {shard}: imported 1 message" in taken.stdout
    checked = run("check")
    assert checked.stdout.count("no faults") == 4 and checked.stdout.count(": 1 message,") == 1
    with closing(PostgresqlEngine(url, shard=shard, is_tool=True)) as engine:
        numbers = engine.get(keys.META_NUMBERS_KEY)
        assert numbers is not None and decode_numbers(numbers) > first_number(shard), "ids of shards differ"
        assert engine.get(keys.META_TOKEN_KEY) is None, "the hub gives that of the cluster"


def test_what_makes_no_sense_on_a_database_is_refused_with_what_to_do(run: Run) -> None:
    for command, remedy in (("repair", "pg_dump"), ("compact", "VACUUM (FULL, ANALYZE)")):
        refused = run(command)
        assert refused.exit_code == Exit.USAGE
        assert "the messages are in a database" in refused.output and remedy in refused.output


def test_an_empty_database_is_told_from_an_empty_store(run: Run) -> None:
    for command in ("check", "export"):
        refused = run(command)
        assert refused.exit_code == Exit.STORE and "no broker has used it yet" in refused.output
    assert "would import 1 message" in run("import", "-", "--dry-run", input=lines("one")).stdout
