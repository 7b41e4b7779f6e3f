"""The scenarios of the same name through a link."""

from tests.scenarios.test_transactions import *  # noqa: F403
