"""Scenarios of logs, with appenders and readers of their own."""
