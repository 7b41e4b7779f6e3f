"""The scenarios of the same name through a link."""

from tests.scenarios.test_relays import *  # noqa: F403
