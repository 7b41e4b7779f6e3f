"""A broker in a process of its own with something going on: clients that send, consume, stall and refuse.

The bottleneck is that of `examples/bottleneck.py`: `billing` takes what its credit allows and acknowledges nothing, so
`/queue/orders` is full, and whoever sends to it stands still.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import stomp

PATIENCE_SECONDS: Final = 40.0
SCRIPT: Final = "<script>window.ranScript = true</script><img src=x onerror='window.ranScript = true'>"
"""What somebody puts into names, headers and bodies who means no good."""

CONFIG: Final = """
[logging]
level = "warning"

[[destinations]]
match = "/queue/orders"
memory_bytes = "64KiB"
paging = "throttle"

[[destinations]]
match = "/queue/refunds"
redeliveries_max = 0
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look often; TimeoutError after a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"within {PATIENCE_SECONDS:g} s this did not happen: {what}")
        time.sleep(0.02)


class BrokerProcess:
    """`sluiceway serve` with an admin port, in an empty folder. A context manager: it ends what it started."""

    def __init__(self, folder: Path, config: str = "", *options: str) -> None:
        """`options`: of `sluiceway serve`."""
        self._options = options
        self._folder = folder
        self._config = config
        self._process: subprocess.Popen[str] | None = None
        # Asks a second time when a connection was cut: the machine may have been busy for so long.
        self._client = httpx.Client(transport=httpx.HTTPTransport(retries=1), headers={"Connection": "close"})
        self.host = "127.0.0.1"
        self.port = 0
        self.url = ""
        """Of the console."""

    def __enter__(self) -> BrokerProcess:
        path = self._folder / "sluiceway.toml"
        path.write_text(self._config, encoding="utf-8")
        # Where it writes what it has to say; a pipe that nobody empties would hold it up.
        self._log = (self._folder / "broker.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sluiceway", "serve", "--config", str(path)),
                *("--data", str(self._folder / "data"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
                *self._options,
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("sluiceway ready: "):
                self.port = int(line.rpartition(":")[2])
            elif line.startswith("sluiceway admin: "):
                self.url = line.partition("admin: ")[2].strip()
            if self.port and self.url:
                return self
        said = (self._folder / "broker.log").read_text(encoding="utf-8")
        raise RuntimeError(f"the broker ended with code {self._process.wait()}: {said[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self.stop()
        self._log.close()

    def stop(self) -> None:
        """End it, at once: what it holds is of no use to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, path: str, **query: object) -> Any:
        """GET of the API. AssertionError with what the broker says, if it refuses."""
        answer = self._client.get(f"{self.url}/api/v1{path}", params={key: str(value) for key, value in query.items()})
        assert answer.is_success, answer.text
        return answer.json()


class _Taker(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Does with each message what it is told to: "ack", "nack" or "keep"."""

    def __init__(self, connection: Any, does: str) -> None:
        self._connection = connection
        self._does = does
        self.count = 0

    def hang_up(self) -> None:
        """Go, and leave what was held to others."""
        self._connection.disconnect()

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self.count += 1
        if self._does == "ack":
            self._connection.ack(frame.headers["ack"])
        elif self._does == "nack":
            self._connection.nack(frame.headers["ack"])


class Traffic:
    """STOMP clients. A context manager: at the end all of them hang up."""

    def __init__(self, broker: BrokerProcess, *login: str) -> None:
        """`login`: and passcode, where the broker wants them."""
        self._broker = broker
        self._login = login
        self._connections: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for connection in self._connections:
            # Not in good order: a DISCONNECT would wait behind what is blocked.
            connection.transport.disconnect_socket()
        for thread in (*self._threads, *(connection.transport.io_thread for connection in self._connections)):
            thread.join(PATIENCE_SECONDS)

    def connect(self, client_id: str) -> Any:
        """A connection of that name."""
        connection = stomp.Connection12([(self._broker.host, self._broker.port)], reconnect_attempts_max=1)
        self._connections.append(connection)
        connection.connect(*self._login, wait=True, headers={"client-id": client_id})
        return connection

    def consume(self, client_id: str, destination: str, name: str, *, does: str = "ack", **headers: str) -> _Taker:
        """Subscribe with acknowledgements for each message."""
        connection = self.connect(client_id)
        taker = _Taker(connection, does)
        connection.set_listener("taker", taker)
        said = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.subscribe(destination, id=name, ack="client-individual", headers=said)
        return taker

    def send(self, client_id: str, destination: str, bodies: list[str], **headers: str) -> None:
        """Send these and wait until the broker has taken them."""
        connection = self.connect(client_id)
        listener = stomp.listener.WaitingListener("all")
        connection.set_listener("receipt", listener)
        for body in bodies[:-1]:
            connection.send(destination, body, headers=headers)
        connection.send(destination, bodies[-1], headers={**headers, "receipt": "all"})
        listener.wait_on_receipt()

    def keep_sending(self, client_id: str, destinations: list[str], body: str, *, per_second: float) -> None:
        """In a thread, until the end; whoever is held up just waits."""
        connection = self.connect(client_id)

        def run() -> None:
            while not self._over.wait(1 / min(per_second, 50)):
                for _ in range(max(1, round(per_second / 50))):
                    for destination in destinations:
                        try:
                            connection.send(destination, body)
                        except (OSError, stomp.exception.StompException):
                            return  # hung up

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)


def bottleneck(traffic: Traffic, broker: BrokerProcess) -> None:
    """web-3 waits on /queue/orders, which waits on billing."""
    taker = traffic.consume("billing-2", "/queue/orders", "billing", does="keep", prefetch_count="50")
    for name in ("web-1", "web-3"):
        traffic.keep_sending(name, ["/queue/orders"], "x" * 500, per_second=2_000)
    wait_until(lambda: taker.count >= 50 and bool(broker.ask("/overview")["bottlenecks"]), "somebody is held up")


def dead_letters(traffic: Traffic, broker: BrokerProcess) -> None:
    """Three orders that were refused lie among the dead letters."""
    traffic.send("shop", "/queue/refunds", [order(number) for number in (4711, 4712, 4713)], priority="4")
    taker = traffic.consume("till", "/queue/refunds", "till", does="nack")
    wait_until(lambda: taker.count >= 3, "three are refused")
    wait_until(lambda: [q["depth_count"] for q in broker.ask("/dead-letters")["items"]] == [3], "they are given up")
    taker.hang_up()


def order(number: int) -> str:
    """A body that says something."""
    lines = [{"sku": "A-17", "count": 2, "price": 19.9}, {"sku": "C-3", "count": 1, "price": 4.5}]
    return json.dumps({"order": number, "customer": "Müller & Søn", "paid": True, "lines": lines})


def everyday(traffic: Traffic, broker: BrokerProcess) -> None:
    """What flows: a topic with two readers, a queue that keeps up, a log with two groups; a mailbox nobody empties."""
    traffic.consume("ticker", "/topic/prices", "ticker")
    traffic.consume("risk", "/topic/prices", "risk")
    traffic.keep_sending("feed", ["/topic/prices"], "EURUSD 1.0841", per_second=80)
    traffic.consume("mailer", "/queue/mail", "mailer")
    traffic.consume("archive", "/log/audit", "archive", group="archive", from_="earliest")
    traffic.keep_sending("web-2", ["/queue/mail", "/log/audit"], order(17), per_second=20)
    wait_until(lambda: broker.ask("/overview")["totals"]["subscriptions_count"] >= 4, "all have subscribed")
