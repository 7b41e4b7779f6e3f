"""Tests of the simulation that users have for their own tests."""
