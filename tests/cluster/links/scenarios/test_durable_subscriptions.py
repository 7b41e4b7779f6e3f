"""The scenarios of the same name through a link."""

from tests.scenarios.test_durable_subscriptions import *  # noqa: F403
