"""The scenarios of the same name through a link."""

from tests.scenarios.test_log_identity import *  # noqa: F403
