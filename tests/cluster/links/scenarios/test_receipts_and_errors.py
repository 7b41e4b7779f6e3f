"""The scenarios of the same name through a link."""

from tests.scenarios.test_receipts_and_errors import *  # noqa: F403
