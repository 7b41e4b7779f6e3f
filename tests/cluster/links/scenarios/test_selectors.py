"""The scenarios of the same name through a link."""

from tests.scenarios.test_selectors import *  # noqa: F403
