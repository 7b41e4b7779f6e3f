"""A cluster on a real ZooKeeper and PostgreSQL: made once, completed, refused, and checked before a hub joins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluiceway.cli import main
from sluiceway.cli.exits import Exit
from sluiceway.cluster.coordination import zookeeper_once
from sluiceway.cluster.coordination.zookeeper_once import ZooKeeperOnce
from sluiceway.cluster.founding import found_cluster, look_for_cluster, zookeeper_settings
from sluiceway.cluster.owner_records import CLUSTER_PATH, ClusterMismatchError, OwnerRecord, shard_path
from sluiceway.config import ConfigError
from sluiceway.store.compare_and_set import MetadataFailedError
from sluiceway.store.engine import EngineError, put
from sluiceway.store.postgresql import PostgresqlEngine
from sluiceway.store.postgresql_schema import SchemaError
from tests.cluster.coordination.zookeeper_world import ZooKeeperServer, free_port
from tests.cluster.machines.places import Place
from tests.postgresql_server import PASSWORD_USER, server

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def place(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Place:
    return Place(zookeeper_server, tmp_path)


def run(place: Place, *arguments: str, shards: int = 8, **changes: Any) -> tuple[int, str]:
    """Run `sluiceway cluster init` with a configuration without a hub's name, as for all of them."""
    file = str(place.file("", **changes))
    result = CliRunner().invoke(main, ["cluster", "init", "--config", file, "--shards", str(shards), *arguments])
    return result.exit_code, result.output


def test_init_makes_a_cluster_once(place: Place) -> None:
    """Said again, it is there already; what hubs find is what was made."""
    code, said = run(place, "--name", "orders")
    assert code == 0, said
    assert " made: 8 shards" in said and f"coordination: {place.servers}{place.root}" in said
    found = look_for_cluster(place.config()).record
    assert (found.name, found.shards_count) == ("orders", 8)
    code, again = run(place)
    assert code == 0
    assert f"cluster orders ({found.id}) is there already: 8 shards" in again


def test_the_number_of_shards_never_changes(place: Place) -> None:
    run(place)
    code, said = run(place, shards=16)
    assert code == Exit.USAGE
    assert "is there already, with 8 shards, not 16: the number is fixed when a cluster is made" in said


def test_a_path_of_another_cluster_is_refused(place: Place) -> None:
    """The new database stays as it was: without tables."""
    run(place)
    code, said = run(place, store={"url": server().new_schema()})
    assert code == Exit.USAGE
    assert "holds the cluster" in said and "give each cluster a path of its own in cluster.coordination" in said


def test_a_database_of_another_cluster_is_refused(place: Place) -> None:
    run(place)
    code, said = run(place, coordination=f"{place.servers}{place.root}-2")
    assert code == Exit.USAGE
    assert f"whose path is {place.root}: name another database or schema in store.url" in said


def test_a_database_with_the_messages_of_a_broker_is_refused(place: Place) -> None:
    """They lie in one shard."""
    PostgresqlEngine(place.url).close()
    code, said = run(place)
    assert code == Exit.STORE
    assert "has the messages of a broker without a cluster, which can't be divided into shards" in said


def test_a_broker_without_a_cluster_keeps_off_the_database_of_one(place: Place) -> None:
    run(place)
    with pytest.raises(SchemaError, match=r"it belongs to the cluster .*, and this broker is no hub of it"):
        PostgresqlEngine(place.url)


def test_an_interrupted_attempt_is_completed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database has its row, and the record is missing."""

    def interrupted(_self: ZooKeeperOnce, _path: str, _value: bytes) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ZooKeeperOnce, "create", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found_cluster(place.config(), name="", shards_count=8)
    with pytest.raises(ClusterMismatchError, match=r"there is no cluster at .* make it with `sluiceway cluster init`"):
        look_for_cluster(place.config())
    made = found_cluster(place.config(), name="", shards_count=8)
    assert made.is_new
    assert look_for_cluster(place.config()).record == made.record


def test_a_coordination_service_that_has_lost_everything_gets_it_from_the_database(place: Place) -> None:
    """With the epochs: else the next owner of a shard would be refused by the database."""
    before = found_cluster(place.config(), name="", shards_count=8).record
    engine = PostgresqlEngine(place.url, shard=3, epoch=7)
    engine.write([put(b"key", b"value")], sync=True)
    engine.close()
    settings = zookeeper_settings(place.config().cluster)
    with ZooKeeperOnce(settings) as zookeeper:
        zookeeper._zoo.delete(place.root, recursive=True)
    assert found_cluster(place.config(), name="", shards_count=8).record == before
    with ZooKeeperOnce(settings) as zookeeper:
        found = zookeeper.read(shard_path(3))
    assert found is not None
    assert OwnerRecord.decoded(found, 3) == OwnerRecord("", "", 7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: {**record, "layout": 2}, "has layout 2, and this version knows layouts up to 1: install the"),
        (lambda record: {**record, "id": "beef"}, "give each cluster a path and a database of its own"),
        (lambda record: {**record, "shards_count": 16}, "16 shards at .* and 8 in PostgreSQL.*: one of both was"),
        (lambda _record: "nonsense", "is used by something else, or is damaged: the record of the cluster is no"),
    ],
    ids=["another version", "another cluster", "another number of shards", "something else"],
)
def test_a_hub_that_does_not_belong_to_what_it_finds_does_not_join(
    place: Place, change: Callable[[Any], Any], words: str
) -> None:
    found_cluster(place.config(), name="", shards_count=8)
    with ZooKeeperOnce(zookeeper_settings(place.config().cluster)) as zookeeper:
        found = zookeeper.read(CLUSTER_PATH)
        assert found is not None
        zookeeper._zoo.set(place.root + CLUSTER_PATH, json.dumps(change(json.loads(found))).encode())
    with pytest.raises(ClusterMismatchError, match=words):
        look_for_cluster(place.config())


def test_a_hub_with_another_database_does_not_join(place: Place) -> None:
    """It would have an empty cluster beside the others."""
    found_cluster(place.config(), name="", shards_count=8)
    with pytest.raises(ClusterMismatchError, match=r"belongs to no cluster, and .* holds the cluster"):
        look_for_cluster(place.config(store={"url": server().new_schema()}))


def test_services_that_do_not_answer_are_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """First ZooKeeper, then the database."""
    found_cluster(place.config(), name="", shards_count=8)
    monkeypatch.setattr(zookeeper_once, "CONNECT_SECONDS", 0.3)
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(MetadataFailedError, match=rf"no ZooKeeper server answers at {gone} within 0\.3 s"):
        look_for_cluster(place.config(coordination=f"{gone}{place.root}"))
    with pytest.raises(EngineError, match="connecting failed"):
        look_for_cluster(place.config(store={"url": f"postgresql://{gone}/sluiceway"}))


def test_wrong_credentials_are_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ZooKeeper, whose records belong to the user that made them, and those of the database."""
    monkeypatch.setenv("WORD", "right")
    user = {"coordination_user": "hubs", "coordination_password_env": "WORD"}
    found_cluster(place.config(**user), name="", shards_count=8)
    assert look_for_cluster(place.config(**user)).record.shards_count == 8
    monkeypatch.setenv("WORD", "wrong")
    with pytest.raises(MetadataFailedError, match="the credentials of 'hubs' do not allow it"):
        look_for_cluster(place.config(**user))
    with pytest.raises(MetadataFailedError, match="it asks for credentials"):
        look_for_cluster(place.config())
    monkeypatch.delenv("WORD")
    with pytest.raises(ConfigError, match="the environment variable WORD is not set"):
        look_for_cluster(place.config(**user))
    monkeypatch.setenv("WORD", "right")
    database = server()
    url = f"postgresql://{PASSWORD_USER}:wrong-word@/postgres?host={database.folder}"
    with pytest.raises(EngineError, match="Give the right password"):
        look_for_cluster(place.config(**user, store={"url": url}))


def test_a_name_that_can_not_be_is_refused_before_anything_is_asked(place: Place) -> None:
    code, said = run(place, "--name", "two words")
    assert code == Exit.USAGE
    assert "'two words' is no name of a cluster" in said
    for count, words in ((3, "power of two"), (1, "two shards at least")):
        with pytest.raises(ValueError, match=words):
            found_cluster(place.config(), name="", shards_count=count)
