"""Tests of topics that come from other regions."""
