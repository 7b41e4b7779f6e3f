"""Records of a cluster: round trips, and words for what does not fit."""

from __future__ import annotations

from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.simulated import HubTime, SimulatedService, VirtualTime
from sluiceway.cluster.owner_records import (
    LAYOUT,
    ClusterMismatchError,
    ClusterRecord,
    ClusterRecordError,
    OwnerRecord,
    check_cluster,
    make_cluster,
)
from tests.cluster.coordination.worlds import Heard

CLUSTER = ClusterRecord("orders", "5f3a", 32)


TEXTS = st.text(max_size=20)


@settings(max_examples=30)
@given(st.builds(OwnerRecord, TEXTS, TEXTS, st.integers(0), TEXTS))
def test_the_owner_of_a_shard_is_read_as_it_was_written(record: OwnerRecord) -> None:
    assert OwnerRecord.decoded(record.encoded(), 17) == record


def test_a_cluster_is_read_as_it_was_written() -> None:
    assert check_cluster(CLUSTER.encoded(), "/sluiceway", shards_count=32, known_id="5f3a") == CLUSTER
    assert check_cluster(CLUSTER.encoded(), "/sluiceway") == CLUSTER


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"hub":"a"}', b'{"hub":"a","session":"b","epoch":-1}'])
def test_a_damaged_record_names_its_shard(data: bytes) -> None:
    with pytest.raises(ClusterRecordError, match="the record of shard 17"):
        OwnerRecord.decoded(data, 17)


def test_a_path_without_a_cluster_says_how_to_make_one() -> None:
    with pytest.raises(ClusterMismatchError, match=r"no cluster at zk:2181/sluiceway yet: .*sluiceway cluster init"):
        check_cluster(None, "zk:2181/sluiceway")


def test_two_clusters_on_one_path_are_told_apart() -> None:
    with pytest.raises(ClusterMismatchError, match=r"orders \(5f3a\), .* another one \(77aa\): give each"):
        check_cluster(CLUSTER.encoded(), "/sluiceway", known_id="77aa")


def test_a_hub_with_the_wrong_number_of_shards_is_refused() -> None:
    with pytest.raises(ClusterMismatchError, match="has 32 shards, and this hub is configured for 16"):
        check_cluster(CLUSTER.encoded(), "/sluiceway", shards_count=16)


def test_a_hub_of_an_earlier_version_is_refused() -> None:
    later = attrs.evolve(CLUSTER, layout=LAYOUT + 1)
    with pytest.raises(ClusterMismatchError, match="has layout 2, and this version knows layouts up to 1"):
        check_cluster(later.encoded(), "/sluiceway")


def test_a_path_of_another_program_is_refused() -> None:
    with pytest.raises(ClusterMismatchError, match="is used by something else, or is damaged"):
        check_cluster(b"kafka", "/brokers")


@pytest.mark.parametrize("count", [0, 3, 31, 8_192])
def test_shards_are_a_power_of_two(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        ClusterRecord("orders", "1", count)


def test_a_cluster_is_made_once_at_a_path() -> None:
    time = VirtualTime()
    service = SimulatedService(time, Random(1))
    hub = service.channel(HubTime(time)).client
    hub.start(Hub("hub-1"), Heard())
    time.run(1.0)
    answers: list[Exception | None] = []
    make_cluster(hub, CLUSTER, "/sluiceway", answers.append)
    make_cluster(hub, ClusterRecord("bills", "77aa", 8), "/sluiceway", answers.append)
    time.run(1.0)
    assert answers[0] is None
    assert isinstance(answers[1], ClusterMismatchError)
    assert str(answers[1]).startswith("/sluiceway holds the cluster orders with 32 shards already")
