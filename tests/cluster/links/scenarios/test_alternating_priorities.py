"""The scenarios of the same name through a link."""

from tests.scenarios.test_alternating_priorities import *  # noqa: F403
