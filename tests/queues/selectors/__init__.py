"""Selectors: what they take, what they refuse, and what they cost."""
