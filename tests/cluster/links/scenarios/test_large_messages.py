"""The scenarios of the same name through a link."""

from tests.scenarios.test_large_messages import *  # noqa: F403

globals().pop("test_subscribers_of_a_topic_share_one_file")  # the file is at the hub of the subscribers
