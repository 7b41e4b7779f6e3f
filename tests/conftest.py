"""What holds for the whole suite: property tests run the same examples every time.

`HYPOTHESIS_PROFILE=explore scripts/test tests/...` looks for new examples instead, ten times as many.
"""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline per example: a machine that is busy with something else is not a fault of ours.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
