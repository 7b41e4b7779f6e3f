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


def test_the_face_says_what_it_offers() -> None:
    import sluiceway
    from sluiceway.config import Config

    assert sluiceway.Config is Config
    assert {"Broker", "Config", "EmbeddedBroker", "__version__"} <= set(dir(sluiceway))
    with pytest.raises(AttributeError, match="it offers AsyncEmbeddedBroker, Broker, Config, EmbeddedBroker"):
        _ = sluiceway.Borker
