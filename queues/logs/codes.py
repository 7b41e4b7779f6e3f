"""Luxun's result codes.

Replies to requests carry the result code of a failure (`error`). ERROR frames have a word for it
(`protocols/stomp/errors.py`).
"""

from __future__ import annotations

from typing import Final

TOPIC_NOT_EXIST: Final = "TOPIC_NOT_EXIST"
INDEX_OUT_OF_BOUNDS: Final = "INDEX_OUT_OF_BOUNDS"
INVALID_TOPIC: Final = "INVALID_TOPIC"
TOPIC_IS_EMPTY: Final = "TOPIC_IS_EMPTY"
AUTHENTICATION_FAILURE: Final = "AUTHENTICATION_FAILURE"
GROUP_NOT_EXIST: Final = "GROUP_NOT_EXIST"
GROUP_IN_USE: Final = "GROUP_IN_USE"
INTERNAL_ERROR: Final = "INTERNAL_ERROR"
MESSAGE_SIZE_TOO_LARGE: Final = "MESSAGE_SIZE_TOO_LARGE"
