"""STOMP from a real browser."""
