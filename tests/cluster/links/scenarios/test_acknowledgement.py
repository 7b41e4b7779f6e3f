"""Acknowledgement through a link."""

from tests.scenarios.test_acknowledgement import *  # noqa: F403
