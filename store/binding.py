"""The LevelDB binding, under one name: plyvel, or plyvel-next where plyvel ships no wheels (Python 3.13 and later). The
two are the same but for the name of the module.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 13):
    import plyvel_next as plyvel
else:
    import plyvel

__all__ = ["plyvel"]
