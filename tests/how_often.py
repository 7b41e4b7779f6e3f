"""How much is played of what chance decides: rounds, seeds, examples, kills.

Seeds and examples are the same in each run, so that many of them find something new once only. The suite plays few;
`SLUICEWAY_TEST_TIMES=20 scripts/test tests/...` plays twenty times as many, the usual ones among them.
"""

from __future__ import annotations

import os
from typing import Final

_TIMES: Final = int(os.environ.get("SLUICEWAY_TEST_TIMES", "1"))


def rounds(count: int) -> int:
    """So many rounds, seeds, examples or kills in the usual run; as many times more as is asked for."""
    return count * _TIMES


def crowd_of(full: int, usual: int) -> int:
    """How many a crowd has: `usual` in the usual run, for the sake of its time; `full` where more is played."""
    return usual if _TIMES == 1 else full
