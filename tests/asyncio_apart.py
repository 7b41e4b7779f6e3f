"""asyncio for tests: in a thread of its own, for in the main one of this process Playwright's loop may already run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


def run_apart(main: Coroutine[Any, Any, _T]) -> _T:
    """What `asyncio.run` would return or raise."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, main).result()
