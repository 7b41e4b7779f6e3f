"""Errors of a configuration, apart from the code that reads one: a running broker loads this module, and no reader."""

from __future__ import annotations


class ConfigError(Exception):
    """Invalid configuration. The message has one line per mistake: its source, the key, the value, the allowed
    values.
    """
