"""A real browser for tests, without a window.

SLUICEWAY_CHROMIUM names it, if it is not on the path. SLUICEWAY_REQUIRE_BROWSER=1: none is a failure, where these tests
must run; else they are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where it is; None: there is none."""
    named = os.environ.get("SLUICEWAY_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One for all tests of a process."""
    path = chromium()
    if path is None:
        why = f"no browser: none of {', '.join(NAMES)} is on the path, and SLUICEWAY_CHROMIUM names none"
        if os.environ.get("SLUICEWAY_REQUIRE_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox of its own: containers have none to give, and it sees nothing but our broker.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()
