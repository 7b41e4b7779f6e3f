"""The scenarios of the same name through a link."""

from tests.scenarios.test_browsing import *  # noqa: F403
