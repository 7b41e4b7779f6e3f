"""The scenarios of the same name through a link."""

from tests.scenarios.test_log_requests import *  # noqa: F403
