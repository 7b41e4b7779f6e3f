"""Metrics: what is on the page, and how it is made."""
