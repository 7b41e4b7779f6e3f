"""The scenarios of the same name through a link."""

from tests.scenarios.test_large_messages import *  # noqa: F403
