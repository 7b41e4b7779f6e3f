"""The scenarios of the same name through a link."""

from tests.scenarios.test_destinations import *  # noqa: F403
