"""The scenarios of the same name through a link."""

from tests.scenarios.test_order import *  # noqa: F403
