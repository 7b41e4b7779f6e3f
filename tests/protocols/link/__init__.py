"""Tests of links between hubs."""
