"""The configuration: documented frozen objects, and the ways to fill them.

`Config()` is a working configuration. `load()` fills one from a TOML file, then the environment, then command-line
flags; later sources override earlier ones. The sample file and docs/configuration-reference.md are generated from the
fields' own documentation (`sample`).

    fields      documentation of fields, and validators; classes of other folders use it, too
    model       the objects: all settings, with defaults and reasons
    listening   listeners in one word, such as wss://0.0.0.0:15673/stomp
    units       "64 MiB" and "1500 ms" to numbers and back
    errors      ConfigError
    structure   plain data to the objects; unknown keys and bad values refused by name
    admin       the admin port
    cluster     this broker as a hub among others
    logging     logging of the broker
    former      former names of sections, read for one more version
    layers      the contents of one source, as plain data
    sources     file, environment and flags merged, each value with its source
    virtual_hosts  sets of destinations of their own
    sample      the TOML sample and the documentation page

The names below are looked up on first use: classes that live elsewhere import `fields` from here, and `model` imports
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from sluiceway.config.admin import AdminConfig
    from sluiceway.config.errors import ConfigError
    from sluiceway.config.logging import LoggingConfig
    from sluiceway.config.model import (
        BrokerConfig,
        Config,
        DestinationPolicy,
        Listener,
    )
    from sluiceway.config.sources import load
    from sluiceway.security.config import SecurityConfig

__all__ = [
    "AdminConfig",
    "BrokerConfig",
    "Config",
    "ConfigError",
    "DestinationPolicy",
    "Listener",
    "LoggingConfig",
    "SecurityConfig",
    "load",
]

_HOMES = {
    "AdminConfig": "sluiceway.config.admin",
    "BrokerConfig": "sluiceway.config.model",
    "Config": "sluiceway.config.model",
    "ConfigError": "sluiceway.config.errors",
    "DestinationPolicy": "sluiceway.config.model",
    "Listener": "sluiceway.config.model",
    "LoggingConfig": "sluiceway.config.logging",
    "SecurityConfig": "sluiceway.security.config",
    "load": "sluiceway.config.sources",
}

_look_up, __dir__ = _lazy_names(__name__, globals(), _HOMES)


def __getattr__(name: str) -> object:
    if name == "LogsConfig":  # for one more version, as `former`
        import warnings

        warnings.warn("sluiceway.config.LogsConfig is now LoggingConfig", DeprecationWarning, stacklevel=2)
        name = "LoggingConfig"
    return _look_up(name)
