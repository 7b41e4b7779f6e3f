"""A real ZooKeeper for a module, as for the tests of coordination."""

from __future__ import annotations

from tests.cluster.coordination.conftest import zookeeper_server

__all__ = ["zookeeper_server"]
