"""One real ZooKeeper for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.coordination.zookeeper_world import ZooKeeperServer, missing


@pytest.fixture(scope="module")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    if missing():
        pytest.skip(f"a ZooKeeper needs {missing()}: pip install 'sluiceway[spark]'")
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()
