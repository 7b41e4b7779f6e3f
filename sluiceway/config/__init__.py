"""The configuration: documented frozen objects, and the ways to fill them.

`Config()` is a working configuration. `load()` fills one from a TOML file, then the environment, then command-line
flags, each going over the one before. The sample file and docs/configuration.md are generated from the fields' own
documentation (`sample`).

    model       the objects: what can be configured, with defaults and reasons
    units       "64 MiB" and "1500 ms" to numbers and back
    structure   plain data to the objects; unknown keys and bad values refused by name
    sources     file, environment and flags merged, each value remembering where it came from
    sample      the TOML sample and the documentation page
"""

from __future__ import annotations

from sluiceway.config.model import (
    BrokerConfig,
    Config,
    DestinationPolicy,
    Listener,
    LogsConfig,
    SecurityConfig,
)
from sluiceway.config.sources import load
from sluiceway.config.structure import ConfigError

__all__ = [
    "BrokerConfig",
    "Config",
    "ConfigError",
    "DestinationPolicy",
    "Listener",
    "LogsConfig",
    "SecurityConfig",
    "load",
]
