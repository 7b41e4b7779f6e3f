"""Tests of trails: rings, what is recorded, how it is found again."""
