"""Spans on their way to a collector: a small HTTP server on loopback that takes OTLP, or does not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest
import stomp
import structlog
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sluiceway.broker import Broker
from sluiceway.config import Config, Listener
from sluiceway.extras import MissingExtraError
from sluiceway.tracing.config import TracingConfig
from sluiceway.tracing.context import TraceContext
from sluiceway.tracing.exporting import otlp_spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
DEADLINE_SECONDS = 20


class Collector(ThreadingHTTPServer):
    """Takes spans while `status` is 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.names: list[str] = []
        self.services: set[str] = set()
        self.came = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.server.status == 200:
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                self.server.services |= {
                    a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                }
                self.server.names += [span.name for scope in resource.scope_spans for span in scope.spans]
        self.send_response(self.server.status)
        self.end_headers()
        self.server.came.set()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def traced_config(endpoint: str) -> Config:
    return attrs.evolve(
        Config(listeners=(Listener(address="127.0.0.1:0"),)), tracing=TracingConfig(enabled=True, endpoint=endpoint)
    )


def send_and_receive(address: str) -> None:
    """One traced message through the broker, by a client of today."""
    host, _colon, port = address.rpartition(":")
    connection = stomp.Connection12([(host, int(port))])
    got = threading.Event()

    class Listening(stomp.ConnectionListener):  # type: ignore[misc]
        def on_message(self, frame: object) -> None:
            got.set()

    connection.set_listener("", Listening())
    connection.connect(wait=True)
    connection.subscribe("/queue/orders", id="1", ack="auto")
    connection.send("/queue/orders", "hello", headers={"traceparent": SAMPLED})
    assert got.wait(DEADLINE_SECONDS)
    connection.disconnect()


def test_the_spans_of_a_message_come_to_the_collector(collector: Collector) -> None:
    """With the name of the broker as the service; what is not posted yet is at the end."""

    async def live() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(traced_config(collector.url)) as broker:
                await trio.to_thread.run_sync(send_and_receive, broker.addresses[0])

    trio.run(live)
    assert sorted(collector.names) == ["accept /queue/orders", "deliver /queue/orders", "wait /queue/orders"]
    assert collector.services == {"sluiceway"}


def test_a_broker_without_its_collector_works_and_ends(collector: Collector) -> None:
    """Nobody waits for spans."""
    collector.status = 400

    async def live() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(traced_config(collector.url)) as broker:
                await trio.to_thread.run_sync(send_and_receive, broker.addresses[0])

    with structlog.testing.capture_logs() as said:
        trio.run(live)
    assert [line["event"] for line in said if "spans" in line["event"]] == [
        "spans are lost: the collector does not take them"
    ]


def test_lost_spans_are_told_once_and_their_return_too(collector: Collector) -> None:
    spans = otlp_spans(TracingConfig(enabled=True, endpoint=collector.url), name="b", version="1")
    context = TraceContext(int(TRACE, 16), 1, True)
    with structlog.testing.capture_logs() as said:
        for status in (400, 400, 200):
            collector.status = status
            spans.span("accept", "server", context, 1, 2, {}, "")
            spans._provider.force_flush(10_000)
        spans.close()
    assert [line["event"] for line in said] == [
        "spans are lost: the collector does not take them",
        "the collector takes spans again",
    ]
    assert said[1]["lost"] == 2


def test_without_its_packages_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "sluiceway.tracing.exporting", raising=False)

    async def start() -> None:
        async with Broker(traced_config("http://127.0.0.1:1/v1/traces")):
            raise AssertionError("it started")

    with pytest.raises(MissingExtraError, match=r"pip install 'sluiceway\[tracing\]'"):
        trio.run(start)


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"endpoint": "localhost:4318"}, "endpoint must be the URL"),
        ({"sample_ratio": 1.5}, "sample_ratio must be from 0"),
        ({"sample_ratio": float("nan")}, "sample_ratio must be from 0"),
        ({"spans_max": 0}, "spans_max must be 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], about: str) -> None:
    with pytest.raises(ValueError, match=about):
        TracingConfig(**settings)  # type: ignore[arg-type]


def test_a_command_that_serves_no_traces_does_not_load_the_sdk() -> None:
    """The extra need not be there, and a broker starts faster without."""
    import subprocess

    code = "import sys, sluiceway.broker; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
