"""Configurations of hubs whose cluster is on a real ZooKeeper and a real PostgreSQL."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from sluiceway.config import Config
from sluiceway.config.structure import structure
from tests.cluster.coordination.zookeeper_world import ZooKeeperServer
from tests.postgresql_server import server

SECRET = "a secret of all hubs of this cluster"
_numbers = count(1)


class Place:
    """A path on ZooKeeper and a schema of PostgreSQL that no other test has."""

    def __init__(self, zookeeper: ZooKeeperServer, folder: Path) -> None:
        self.servers = f"127.0.0.1:{zookeeper.port}"
        self.root = f"/sluiceway/place-{next(_numbers)}"
        self.url = server().new_schema()
        self.folder = folder
        (folder / "secret").write_text(f"{SECRET}\n")

    def tables(self, hub: str = "hub-1", **changes: Any) -> dict[str, Any]:
        """Return the tables of a hub's configuration. `changes`: keys of `[cluster]`, and `store`, to change."""
        store = {"engine": "postgresql", "url": self.url, **changes.pop("store", {})}
        cluster = {
            "hub": hub,
            "coordination": f"{self.servers}{self.root}",
            "listen": "127.0.0.1:0",
            "secret_file": str(self.folder / "secret"),
            "session_seconds": 1.2,
            **changes,
        }
        return {
            "broker": {"data_dir": str(self.folder / (hub or "data"))},
            "cluster": cluster,
            "store": store,
            "listeners": [{"address": "127.0.0.1:0"}],
        }

    def config(self, hub: str = "hub-1", **changes: Any) -> Config:
        """Return the configuration of a hub."""
        return structure(self.tables(hub, **changes), Config)

    def file(self, hub: str = "hub-1", **changes: Any) -> Path:
        """Write the configuration of a hub to a file."""
        path = self.folder / f"{hub or 'all'}.toml"
        lines: list[str] = []
        for name, table in self.tables(hub, **changes).items():
            for entry in table if isinstance(table, list) else [table]:
                lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
                for key, value in entry.items():
                    keys = (
                        {f"{key}.{below}": one for below, one in value.items()}
                        if isinstance(value, dict)
                        else {key: value}
                    )
                    lines += [f"{each} = {json.dumps(one)}" for each, one in keys.items()]
        path.write_text("\n".join(lines) + "\n")
        return path
