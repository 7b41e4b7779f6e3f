"""In which order trio runs tasks that could all run. By itself it leaves that to chance."""

from __future__ import annotations

import os
from typing import Any

import trio


def settle_task_order(name: str) -> None:
    """From here on the name of what is played decides, and SLUICEWAY_TASK_ORDER, which asks for another one."""
    run: Any = trio._core._run
    run._r.seed(f"{os.environ.get('SLUICEWAY_TASK_ORDER', '0')} {name}")
