"""The scenarios of the same name through a link."""

from tests.scenarios.test_delayed_delivery import *  # noqa: F403
