"""The scenarios of the same name through a link."""

from tests.scenarios.test_redelivery import *  # noqa: F403
