"""stompjs in a headless Chromium, against a WebSocket listener.

Playwright's own loop and the broker's live in different threads; each test is one page, served over HTTP by this
process, so that it has an origin as in life.
"""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluiceway.config import Config, Listener
from sluiceway.embedded import EmbeddedBroker
from sluiceway.protocols.settings import TlsConfig, WebSocketConfig
from sluiceway.protocols.stomp.limits import StompLimits
from tests.network import authority

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.interop]

HERE = Path(__file__).parent
DEADLINE_MS = 20_000

# What every page does: connect, and resolve when it is. Options of stompjs go over these.
CONNECT = """
window.opened = (url, options = {}) => new Promise((resolve, reject) => {
  const client = new StompJs.Client({
    brokerURL: url, reconnectDelay: 0, heartbeatIncoming: 0, heartbeatOutgoing: 0,
    onConnect: frame => resolve({client, frame}),
    onStompError: frame => reject(new Error(frame.headers.message)),
    onWebSocketClose: event => reject(new Error(`closed ${event.code}`)),
    ...options,
  });
  client.activate();
});
"""


class _Pages(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return str(HERE / ("vendor/stomp.umd.min.js" if path.endswith(".js") else "page.html"))

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Where the page is."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Pages))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def broker(site: str, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Listeners: ws for pages of the site, ws for nobody's pages, wss for pages of the site."""
    limits = StompLimits(heart_beat_min_ms=100)
    ours = WebSocketConfig(origins=(site,))
    tls = TlsConfig(certificate=authority.write(authority.server_certificate("127.0.0.1"), tmp_path))
    web = Listener(address="127.0.0.1:0", protocol="websocket", limits=limits, websocket=ours)
    listeners = (
        web,
        Listener(address="127.0.0.1:0", protocol="websocket", limits=limits),
        Listener(address="127.0.0.1:0", protocol="websocket", limits=limits, websocket=ours, tls=tls),
    )
    with EmbeddedBroker(Config(listeners=listeners)) as running:
        yield running


def url_of(broker: EmbeddedBroker, place: int = 0) -> str:
    return broker.call(lambda running: running.urls[place])


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    """With stompjs loaded. What goes wrong in it fails the test."""
    context = browser.new_context(ignore_https_errors=True)
    opened = context.new_page()
    opened.set_default_timeout(DEADLINE_MS)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.add_init_script(CONNECT)
    opened.goto(site)
    yield opened
    context.close()
    assert not errors


@pytest.mark.parametrize("place", [0, 2], ids=["ws", "wss"])
def test_it_sends_subscribes_and_acknowledges(page: Page, broker: EmbeddedBroker, place: int) -> None:
    """Version 1.2 by sub-protocol; text with characters of all kinds and binary bodies come back as they were."""
    got = page.evaluate(
        """async url => {
          const {client, frame} = await opened(url);
          const texts = ['plain', 'Grüße aus 東京 🚰', '', 'a\\0b'], bytes = new Uint8Array([0, 255, 254, 10]);
          const seen = [];
          const all = new Promise(resolve => client.subscribe('/queue/js', message => {
            const type = message.headers['content-type'];
            seen.push({text: message.body, bytes: [...message.binaryBody.slice(0, 9)], type});
            message.ack();
            if (seen.length === texts.length + 2) resolve();
          }, {ack: 'client-individual', 'prefetch-count': '1'}));
          texts.forEach(body => client.publish({destination: '/queue/js', body}));
          client.publish({destination: '/queue/js', binaryBody: bytes, headers: {'content-type': 'x/y'}});
          client.publish({destination: '/queue/js', body: 'ö'.repeat(300000)});
          await all;
          const protocol = client.webSocket.protocol;
          await client.deactivate();
          return {version: frame.headers.version, protocol, seen};
        }""",
        url_of(broker, place),
    )
    assert got["version"] == "1.2"
    assert got["protocol"] == "v12.stomp"
    seen = got["seen"]
    assert [each["text"] for each in seen[:4]] == ["plain", "Grüße aus 東京 🚰", "", "a\0b"]
    assert seen[4]["bytes"] == [0, 255, 254, 10]
    assert seen[4]["type"] == "x/y"
    assert seen[5]["text"] == "ö" * 300_000
    (destination,) = [each for each in broker.report()["destinations"] if each["name"] == "/queue/js"]
    assert destination["depth_count"] == 0


def test_many_small_messages_come_in_order(page: Page, broker: EmbeddedBroker) -> None:
    """They come batched: several STOMP frames in one message of the WebSocket."""
    got = page.evaluate(
        """async url => {
          const {client} = await opened(url);
          const seen = [];
          const all = new Promise(resolve => client.subscribe('/queue/many', message => {
            seen.push(Number(message.body));
            if (seen.length === 5000) resolve();
          }));
          for (let n = 0; n < 5000; n++) client.publish({destination: '/queue/many', body: String(n)});
          await all;
          await client.deactivate();
          return seen;
        }""",
        url_of(broker),
    )
    assert got == list(range(5000))


def test_heart_beats_keep_it_alive_and_end_it_when_they_stop(page: Page, broker: EmbeddedBroker) -> None:
    """Both sides beat every 200 ms for a while; then the page stops, and the broker says what was missed."""
    said = page.evaluate(
        """async url => {
          const {client, frame} = await opened(url, {heartbeatIncoming: 200, heartbeatOutgoing: 200});
          await new Promise(resolve => setTimeout(resolve, 1500));
          const alive = client.connected;
          const error = new Promise(resolve => { client.onStompError = frame => resolve(frame.headers.code); });
          client._stompHandler._pinger?.stop?.();
          clearInterval(client._stompHandler._pinger);
          const code = await error;
          await client.deactivate({force: true});
          return {alive, beat: frame.headers['heart-beat'], code};
        }""",
        url_of(broker),
    )
    assert said == {"alive": True, "beat": "100,100", "code": "heart-beat-missed"}


def test_it_leaves_in_good_order(page: Page, broker: EmbeddedBroker) -> None:
    """Its WebSocket is closed cleanly, and the broker has forgotten it."""
    closed = page.evaluate(
        """async url => {
          const {client} = await opened(url);
          const closed = new Promise(resolve => {
            client.onWebSocketClose = event => resolve({code: event.code, clean: event.wasClean});
          });
          await client.deactivate();
          return closed;
        }""",
        url_of(broker),
    )
    assert closed["clean"] is True
    deadline = time.monotonic() + DEADLINE_MS / 1000
    while broker.call(lambda running: len(running.connections)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_page_of_strangers_does_not_get_in(page: Page, broker: EmbeddedBroker) -> None:
    said = page.evaluate("url => opened(url).then(() => 'in', error => error.message)", url_of(broker, 1))
    assert said == "closed 1006"


def test_an_error_reaches_the_page(page: Page, broker: EmbeddedBroker) -> None:
    said = page.evaluate(
        """async url => {
          const {client} = await opened(url);
          const error = new Promise(resolve => { client.onStompError = frame => resolve(frame.headers.code); });
          client.subscribe('/queue/js', () => 0, {ack: 'sometimes'});
          return error;
        }""",
        url_of(broker),
    )
    assert "ack" in said
