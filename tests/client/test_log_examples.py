"""The examples of logs run as they stand."""

from __future__ import annotations

import pytest

from tests.architecture.sources import ROOT
from tests.examples.test_examples import run


@pytest.mark.interop
@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "examples" / "logs").glob("*.py") if path.stem != "__init__")
)
def test_example_runs(name: str) -> None:
    done = run(f"examples.logs.{name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert not done.stderr
