"""Scenarios of one broker, with clients at another hub."""
