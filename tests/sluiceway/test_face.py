"""What `import sluiceway` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.sources import ROOT


def test_importing_sluiceway_loads_no_heavy_module() -> None:
    """Every pytest run loads the plugin, and so this package."""
    heavy = {"trio", "attrs", "click", "rich", "stomp", "sluiceway.flow"}
    code = f"import sluiceway, sys; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_embedded_broker_loads_no_module_that_it_does_not_use() -> None:
    """A first test pays for each. With the first warning comes structlog, with the first selector Lark, and with
    settings cattrs.
    """
    heavy = {
        "asyncio", "cattrs", "click", "h11", "h2", "httpx", "hypercorn", "lark", "opentelemetry", "plyvel",
        "plyvel_next", "prometheus_client", "psycopg", "rich", "starlette", "stomp", "structlog", "textual",
        "websockets", "wsproto",
        "sluiceway.admin.server", "sluiceway.cli", "sluiceway.protocols.websocket", "sluiceway.top",
    }  # fmt: skip
    code = f"""
import sys
from sluiceway import EmbeddedBroker
with EmbeddedBroker() as broker:
    broker.publish("/queue/orders", "42 ducks")
    assert broker.messages("/queue/orders")[0].text == "42 ducks"
    with broker.subscribe("/queue/orders") as orders:
        orders.receive()
print(sorted({heavy!r} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_face_says_what_it_offers() -> None:
    import sluiceway
    from sluiceway.config import Config

    assert sluiceway.Config is Config
    assert {"Broker", "Config", "EmbeddedBroker", "__version__"} <= set(dir(sluiceway))
    with pytest.raises(AttributeError, match="it offers AsyncEmbeddedBroker, Broker, Config, EmbeddedBroker"):
        _ = sluiceway.Borker
