"""Some rounds of power cuts for BigArray; see bigarray_cut.py for many, and for one of them again."""

from __future__ import annotations

import pytest

from tests.faults.store.bigarray_cut import run_round
from tests.how_often import rounds

FOUND_A_FAULT = (3, 6, 1001, 1065, 4041)
"""Seeds that once did."""


@pytest.mark.parametrize("seed", [*range(100, 100 + rounds(8)), *FOUND_A_FAULT])
def test_what_was_flushed_is_there_and_no_index_is_used_twice(seed: int) -> None:
    run_round(seed)
