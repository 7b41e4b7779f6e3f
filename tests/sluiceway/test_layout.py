"""`import sluiceway` finds its own core packages, or says what is in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT


def import_in(folder: Path, code: str = "import sluiceway") -> subprocess.CompletedProcess[str]:
    """Runs code with `folder` first on the import path and the checkout after it, as for a script that lies in
    `folder`.
    """
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; {code}"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )


def test_it_imports_where_nothing_is_in_the_way(tmp_path: Path) -> None:
    done = import_in(tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_shadowing_module_is_named_with_the_remedy(tmp_path: Path) -> None:
    shadow = tmp_path / "queues.py"
    shadow.write_text("raise SystemExit('it was imported')\n")
    done = import_in(tmp_path)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert str(shadow) in done.stderr
    assert f"put {ROOT} before {tmp_path} in sys.path" in done.stderr


def test_a_shadowing_package_is_named(tmp_path: Path) -> None:
    shadow = tmp_path / "flow" / "__init__.py"
    shadow.parent.mkdir()
    shadow.write_text("")
    done = import_in(tmp_path)
    assert done.returncode == 1
    assert str(shadow) in done.stderr


def test_a_module_that_was_imported_before_is_seen_too(tmp_path: Path) -> None:
    shadow = tmp_path / "dispatcher.py"
    shadow.write_text("")
    done = import_in(tmp_path, f"import dispatcher; sys.path.remove({str(tmp_path)!r}); import sluiceway")
    assert done.returncode == 1
    assert str(shadow) in done.stderr


def test_a_plain_folder_of_that_name_does_no_harm(tmp_path: Path) -> None:
    """Python prefers a real package further down the path to a folder without `__init__.py`."""
    (tmp_path / "queues").mkdir()
    assert import_in(tmp_path).returncode == 0


def test_a_missing_core_package_says_how_to_install(tmp_path: Path) -> None:
    from sluiceway._layout import check_layout

    with pytest.raises(ImportError, match=r"installed incompletely.*'flow' is missing.*pip install"):
        check_layout(tmp_path)


def test_importing_sluiceway_loads_no_heavy_module(tmp_path: Path) -> None:
    """Every pytest run loads the plugin, and so this package."""
    done = import_in(
        tmp_path,
        "import sluiceway; print(sorted({'trio', 'attrs', 'click', 'rich', 'stomp', 'flow'} & set(sys.modules)))",
    )
    assert done.stdout.strip() == "[]"


def test_the_face_says_what_it_offers() -> None:
    import sluiceway
    from sluiceway.config import Config

    assert sluiceway.Config is Config
    assert {"Broker", "Config", "EmbeddedBroker", "__version__"} <= set(dir(sluiceway))
    with pytest.raises(AttributeError, match="it offers Broker, Config, EmbeddedBroker"):
        _ = sluiceway.Borker
