"""Settings of a listener for the steps before STOMP: TLS and WebSocket.

Each field's metadata holds `doc` and `unit`, from which the sample configuration is printed (`queues.settings`).
Pure: files are read in `tls`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from ..queues.settings import field, one_of

CLIENT_CERTIFICATES: Final = ("none", "optional", "required")
TLS_VERSIONS: Final = ("1.2", "1.3")
ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _environment_name(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if value and not ENVIRONMENT_NAME.fullmatch(value):
        # The value may be the password itself by mistake: it must not be shown.
        raise ValueError(
            f"{attribute.name} must be the name of an environment variable, such as SLUICEWAY_KEY_PASSWORD"
        )


def _path(value: Path | str | None) -> Path | None:
    return None if value is None or value == "" else Path(value)


@attrs.frozen(kw_only=True)
class TlsConfig:
    """TLS of one listener. On when a `certificate` is set."""

    certificate: Path | None = field(
        None,
        "",
        "PEM file with the certificate of this listener, followed by those between it and its authority. Given: the"
        " listener speaks TLS only. Read at the start and at each reload; connections that are there keep theirs.",
        converter=_path,
    )
    key: Path | None = field(
        None, "", "PEM file with its private key. None: it is in the file of the certificate.", converter=_path
    )
    key_password_file: Path | None = field(
        None,
        "",
        "File with the password of the key, if it has one; a line end behind it does not count. There is no key for"
        " the password itself: files of settings are copied and shown around.",
        converter=_path,
    )
    key_password_env: str = field(
        "", "", "Environment variable with the password of the key, in place of a file.", _environment_name
    )
    client_certificates: str = field(
        "none",
        "",
        "`none`: clients are not asked for a certificate. `optional`: a given certificate must be valid."
        " `required`: connections without a valid one are refused. A certificate can replace the passcode: see"
        " `certificates` of [security].",
        one_of(CLIENT_CERTIFICATES),
    )
    client_ca: Path | None = field(
        None,
        "",
        "PEM file with the authorities whose client certificates are valid. Needed if certificates are asked"
        " for: the authorities of the system would admit every buyer of a certificate.",
        converter=_path,
    )
    version_min: str = field(
        "1.2",
        "",
        "The oldest accepted version of TLS: `1.2` or `1.3`. The oldest clients in use support 1.2;"
        " nothing older is safe.",
        one_of(TLS_VERSIONS),
    )
    ciphers: str = field(
        "",
        "",
        "Ciphers for TLS 1.2, in OpenSSL's words. Empty: those that Python takes for safe. TLS 1.3 has only safe ones.",
    )

    @property
    def is_on(self) -> bool:
        """Whether a certificate is configured."""
        return self.certificate is not None

    def __attrs_post_init__(self) -> None:
        if self.certificate is None:
            given = [
                field.name
                for field in attrs.fields(TlsConfig)
                if field.name != "certificate" and getattr(self, field.name) != field.default
            ]
            if given:
                raise ValueError(f"{given[0]} is given without a certificate: name its PEM file, or there is no TLS")
        elif self.client_certificates != "none" and self.client_ca is None:
            raise ValueError(
                f"client_certificates = {self.client_certificates!r} needs client_ca: the PEM file of the authorities"
                " whose certificates are good"
            )
        elif self.client_certificates == "none" and self.client_ca is not None:
            raise ValueError('client_ca is given, but client_certificates = "none": say optional or required')
        if self.key_password_file is not None and self.key_password_env:
            raise ValueError("key_password_file and key_password_env are both given: take one")


def _websocket_path(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not re.fullmatch(r"/[!-~]*", value) or "?" in value or "#" in value:
        raise ValueError(f"{attribute.name} must be the path of a URL, such as /stomp, got {value!r}")


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(values)


def _origins(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for origin in value:
        if origin == "*":
            continue
        try:
            parts = urlsplit(origin)
            is_origin = bool(parts.scheme and parts.hostname) and origin == f"{parts.scheme}://{parts.netloc}"
        except ValueError:
            is_origin = False
        if not is_origin:
            raise ValueError(
                f"{attribute.name} must be origins such as https://app.example or http://localhost:8080 (no path, no"
                f' slash at the end), or "*" for any, got {origin!r}'
            )


@attrs.frozen(kw_only=True)
class WebSocketConfig:
    """Settings of listeners whose protocol is `websocket`."""

    path: str = field(
        "/stomp",
        "",
        "Path of the URL that clients connect to; others are answered with 404. The same as ActiveMQ's and close to"
        " what most examples of stompjs have.",
        _websocket_path,
    )
    origins: tuple[str, ...] = field(
        (),
        "",
        "Pages whose scripts may connect, as their origins: `https://app.example`. Browsers let any page connect, so"
        " this setting keeps strange pages out. Empty: pages that come from the host and port that they connect"
        " to; on a loop-back address that host must be `localhost` or an address. `*`: any page, which is safe only"
        " where users must log in. Clients that are no browsers send no origin and are accepted.",
        _origins,
        _texts,
    )
    upgrade_bytes_max: int = field(
        16 * 1024,
        "bytes",
        "Size of the HTTP request that asks for the WebSocket. Room for the cookies that browsers send along.",
        attrs.validators.ge(512),
    )
