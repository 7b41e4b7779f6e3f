"""Measurements of one thing each, beside the scenarios."""
