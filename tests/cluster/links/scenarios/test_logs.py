"""The scenarios of the same name through a link."""

from tests.scenarios.test_logs import *  # noqa: F403
