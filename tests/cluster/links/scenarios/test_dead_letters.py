"""The scenarios of the same name through a link."""

from tests.scenarios.test_dead_letters import *  # noqa: F403
