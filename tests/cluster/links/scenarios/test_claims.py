"""The scenarios of the same name through a link."""

from tests.scenarios.test_claims import *  # noqa: F403
