"""Has Python keep what it compiled, whatever the environment says.

Images for containers often set PYTHONDONTWRITEBYTECODE. Then each of the hundreds of processes that tests start
compiles the whole broker again, which takes most of the second in which it starts. Here it may be kept: git ignores it.
"""

from __future__ import annotations

import os
import sys


def keep() -> None:
    """In this process, and in all that inherit its environment."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
