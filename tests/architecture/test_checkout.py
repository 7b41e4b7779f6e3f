"""The checkout holds what belongs to the repository, and a suite that leaves files in it fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import checkout

pytest_plugins = ["pytester"]


def test_the_root_has_what_it_is_known_for() -> None:
    """A data folder that a test had written was committed once."""
    assert not checkout.strangers(), "not in KEPT of tests/checkout.py: remove it, or add it there"
    assert checkout.KEPT - {".git", ".dockerignore", ".gitignore", ".ci"} <= {
        path.name for path in checkout.ROOT.iterdir()
    }


def test_a_data_folder_at_the_root_is_a_stranger(tmp_path: Path) -> None:
    for name in ("flow", ".git", "dist", ".venv-3.13", "sluiceway-data", "elsewhere"):
        (tmp_path / name).mkdir()
    assert checkout.strangers(tmp_path) == {"elsewhere"}


@pytest.mark.skipif(not (checkout.ROOT / ".git").exists(), reason="not a checkout of git")
def test_git_tracks_nothing_else_at_the_root() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=checkout.ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.partition("/")[0] for line in listed.splitlines()} <= checkout.KEPT


@pytest.mark.parametrize(
    ("wrote", "left"), [("elsewhere/db/LOCK", "elsewhere/db/LOCK"), ("sluiceway-data/lock", "sluiceway-data")]
)
def test_a_session_that_leaves_a_file_fails_and_names_it(pytester: pytest.Pytester, wrote: str, left: str) -> None:
    pytester.makepyfile(
        f"""
        from pathlib import Path

        def test_passes():
            Path("{wrote}").parent.mkdir(parents=True)
            Path("{wrote}").touch()
        """
    )
    guard = checkout.CheckoutStaysClean(Path(pytester.path))
    result = pytester.inline_run(plugins=[guard])
    result.assertoutcome(passed=1)
    assert guard.left == [left]
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_caches_and_sources_are_no_fault(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_passes():
            for name in (".pytest_cache/x", "a/__pycache__/x.pyc", "new.py", ".venv-3.13/bin/x"):
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).touch()
        """
    )
    assert pytester.inline_run(plugins=[checkout.CheckoutStaysClean(Path(pytester.path))]).ret == pytest.ExitCode.OK
