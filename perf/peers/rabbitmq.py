"""RabbitMQ from Debian with its STOMP plugin, as a throw-away node: own name, own port mapper, own folder, loopback
only.

Left at its defaults: the memory watermark (0.4 of the machine), classic queues, no busy waiting of schedulers (Debian's
own). It is started through the package's inner script, since the outer one changes to the user `rabbitmq`, whose files
these are not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, Daemon, free_port, server_version
from perf.peers.debian import ensure_package

_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

_CONFIGURATION = """\
listeners.tcp = none
stomp.listeners.tcp.1 = {host}:{port}
"""


class RabbitMq:
    """RabbitMQ in two processes: the Erlang port mapper, which every node wants, and the node."""

    name = "rabbitmq"
    durable = True

    def __init__(self) -> None:
        self._mapper: Daemon | None = None
        self._node: Daemon | None = None
        self._version = "not started"

    def install(self) -> None:
        """Install Debian's package unless it is installed."""
        ensure_package("rabbitmq-server", _SCRIPT)

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start it; see `Peer`."""
        endpoint = Endpoint(LOOPBACK, free_port())
        mapper_port, node_port = free_port(), free_port()
        (folder / "rabbitmq.conf").write_text(_CONFIGURATION.format(host=endpoint.host, port=endpoint.port))
        (folder / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
        (folder / "environment.conf").write_text("")
        environment = {
            **os.environ,
            "HOME": str(folder),  # the node's secret cookie is made there
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            # The folder of the data is named after it, so it must not change; the port mapper keeps it to this node.
            "RABBITMQ_NODENAME": "perf@localhost",
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        self._mapper = Daemon(
            "epmd",
            ["epmd", "-port", str(mapper_port), "-address", LOOPBACK],
            folder=folder,
            environment=environment,
            cores=cores,
        )
        self._node = Daemon(self.name, [str(_SCRIPT)], folder=folder, environment=environment, cores=cores)
        self._version = server_version(self._node.await_connected(endpoint))
        return endpoint

    def pids(self) -> list[int]:
        """The script that started the node, whose child the node is."""
        return [self._node.pid] if self._node else []

    def last_words(self) -> str:
        """See `Peer`."""
        return self._node.last_words() if self._node else ""

    def version(self) -> str:
        """Return the `server` header of the broker."""
        return self._version

    def store_counts(self) -> Mapping[str, float]:
        """Return nothing: the broker tells no counts over STOMP."""
        return {}

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Stop the node and its port mapper."""
        for daemon in (self._node, self._mapper):
            if daemon is not None:
                daemon.stop(patience_seconds)
        self._node = self._mapper = None
