"""ActiveMQ Classic from Debian, with one STOMP connector on loopback and KahaDB in a folder of the run.

Java gets 1 GiB of heap, as upstream's own start script gives it. Left at their defaults: the broker's memory limit (1
GiB, or 70 % of the heap where that is less), destination policies, the blocking-I/O STOMP transport, persistence of
what asks for it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, Daemon, DaemonPeer, free_port
from perf.peers.debian import ensure_package
from perf.peers.port import PeerError

_HOME = Path("/usr/share/activemq")
_JAR = _HOME / "bin" / "activemq.jar"

_CONFIGURATION = """\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd http://activemq.apache.org/schema/core
  http://activemq.apache.org/schema/core/activemq-core.xsd"> <broker xmlns="http://activemq.apache.org/schema/core"
  useJmx="false" brokerName="perf" dataDirectory="{folder}/data"> <persistenceAdapter><kahaDB
  directory="{folder}/data/kahadb"/></persistenceAdapter> <transportConnectors><transportConnector name="stomp"
  uri="stomp://{host}:{port}"/></transportConnectors> </broker> </beans>
"""


class ActiveMq(DaemonPeer):
    """One Java process."""

    name = "activemq"
    durable = True

    def install(self) -> None:
        """Install Debian's package, and Java with it, unless they are installed."""
        ensure_package("activemq", _JAR)
        if shutil.which("java") is None:
            raise PeerError("activemq is installed but no java is on the path: `apt-get install default-jre-headless`")

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start it; see `Peer`."""
        endpoint = Endpoint(LOOPBACK, free_port())
        configuration = folder / "activemq.xml"
        configuration.write_text(_CONFIGURATION.format(folder=folder, host=endpoint.host, port=endpoint.port))
        command = [
            "java",
            "-Xmx1G",
            f"-Dactivemq.home={_HOME}",
            f"-Dactivemq.base={folder}",
            f"-Dactivemq.conf={folder}",
            f"-Dactivemq.data={folder}/data",
            f"-Djava.io.tmpdir={folder}",
            "-jar",
            str(_JAR),
            "start",
            f"xbean:file:{configuration}",
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTIVEMQ_")}
        return self._await(Daemon(self.name, command, folder=folder, environment=environment, cores=cores), endpoint)
