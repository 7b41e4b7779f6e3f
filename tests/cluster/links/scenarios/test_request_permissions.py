"""The scenarios of the same name through a link."""

from tests.scenarios.test_request_permissions import *  # noqa: F403
