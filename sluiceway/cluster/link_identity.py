"""Secret and certificates with which a hub proves on links who it is. Blocks: it reads files."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from sluiceway.config.cluster import ClusterConfig
from sluiceway.config.errors import ConfigError
from sluiceway.protocols.tls import CertificateError, peer_context, server_context

SECRET_BYTES_MIN: Final = 16


@attrs.frozen(kw_only=True)
class LinkIdentity:
    """Means of a hub to prove who it is, and to check others."""

    secret: bytes | None = attrs.field(default=None, repr=False)
    """Secret of the cluster; None: certificates prove it."""
    client_tls: ssl.SSLContext | None = None
    """TLS of dialled links; None: plain."""
    server_tls: ssl.SSLContext | None = None
    """TLS of accepted links; None: plain."""


def link_identity(config: ClusterConfig, environment: Mapping[str, str] = os.environ) -> LinkIdentity:
    """Read secret and certificates. Raises ConfigError, whose message names the file or variable and the remedy."""
    secret = None
    if config.has_secret:
        secret = read_secret("cluster.secret", config.secret_file, config.secret_env, environment).encode()
        if len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(
                f"{config.secret_file or config.secret_env}: the secret of the cluster has {len(secret)} bytes, and at "
                f"least {SECRET_BYTES_MIN} are needed: make one with `openssl rand -hex 32`, the same for all hubs"
            )
    if not config.tls.is_on:
        return LinkIdentity(secret=secret)
    try:
        return LinkIdentity(secret=secret, client_tls=peer_context(config.tls), server_tls=server_context(config.tls))
    except CertificateError as error:
        raise ConfigError(f"cluster.tls: {error}") from None


def read_secret(key: str, file: Path | None, variable: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a secret from a file, without the line end behind it, or from an environment variable. Raises
    ConfigError. `key`: beginning of the keys in the configuration, for people.
    """
    if file is None:
        said = environment.get(variable)
        if said is None:
            raise ConfigError(f"the environment variable {variable} is not set, and {key}_env names it: set it")
        return said
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{file} can't be read, and {key}_file names it: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8, and {key}_file names it: write a text into it") from None
