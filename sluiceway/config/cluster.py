"""Place of this broker among the hubs of several machines. See docs/cluster.md."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from sluiceway.cluster.coordination.port import NAME, TEXT_CHARACTERS_MAX
from sluiceway.cluster.coordination.zookeeper_settings import ZooKeeperSettings
from sluiceway.config.fields import is_address, is_address_or_empty, section, split_address
from sluiceway.protocols.settings import ENVIRONMENT_NAME, TlsConfig
from sluiceway.queues.settings import field

if TYPE_CHECKING:
    from sluiceway.store.config import StoreConfig

DEFAULT_ADDRESS: Final = "0.0.0.0:61612"
CLIENT_SCHEMES: Final = ("stomp", "stomp+ssl", "ws", "wss")
SESSION_SECONDS_MIN: Final = 1.0
ANY_HOSTS: Final = ("0.0.0.0", "::")


def _hub(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if value and NAME.fullmatch(value) is None:
        raise ValueError(
            f"hub must be 1 to 63 letters, digits, dots, hyphens and underscores, the first a letter or a digit, such "
            f"as hub-1, got {value[:80]!r}"
        )


def _coordination(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if value:
        ZooKeeperSettings(value)  # its error names the fault, and shows the form


def _environment_name(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if value and not ENVIRONMENT_NAME.fullmatch(value):
        # The value may be the secret itself by mistake: it must not be shown.
        raise ValueError(f"{attribute.name} must be the name of an environment variable, such as SLUICEWAY_LINK_SECRET")


def _path(value: Path | str | None) -> Path | None:
    return None if value is None or value == "" else Path(value)


def _session(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not SESSION_SECONDS_MIN <= value <= 600:
        raise ValueError(f"{attribute.name} must be from 1 to 600, got {value:g}")


def _weight(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1_000_000:
        raise ValueError(f"{attribute.name} must be from 0 to 1,000,000, got {value:g}")


def _client_urls(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if value == "none":
        return
    if len(value) > TEXT_CHARACTERS_MAX:
        raise ValueError(f"{attribute.name} has at most {TEXT_CHARACTERS_MAX} characters, got {len(value)}")
    if value.strip() != value:
        raise ValueError(f"{attribute.name} has blanks around it: {value[:80]!r}")
    for url in value.split():
        _check_client_url(attribute.name, url)


def _check_client_url(name: str, value: str) -> None:
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in CLIENT_SCHEMES and bool(parts.hostname) and parts.port is not None
    except ValueError:
        is_url = False
    if not is_url or re.search(r"[\s@]", value):
        raise ValueError(
            f"{name} must be a URL with a port and without a user, such as stomp://hub-1.example.org:61613 or"
            f" wss://hub-1.example.org:15674/stomp, got {value[:80]!r}"
        )


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """Place of this broker among several hubs, which are one broker to their clients. On when `hub` is set."""

    hub: str = field(
        "",
        "",
        "Name of this hub, which no other hub has, and which stays over restarts: `hub-1`. Empty, the default: a "
        "broker of its own.",
        _hub,
    )
    coordination: str = field(
        "",
        "",
        "Where the hubs agree on who has which shard: the servers of a ZooKeeper ensemble, and a path of the cluster's"
        " own: `zk-1:2181,zk-2:2181,zk-3:2181/sluiceway/orders`. `sluiceway cluster init` makes the cluster there. "
        "Needs the extra `cluster`.",
        _coordination,
    )
    coordination_user: str = field(
        "",
        "",
        "User for the scheme `digest` of ZooKeeper, to whom alone the records of the cluster belong. Empty: all who "
        "reach the ensemble may change them.",
    )
    coordination_password_file: Path | None = field(
        None,
        "",
        "File with the password of `coordination_user`; a line end behind it does not count.",
        converter=_path,
    )
    coordination_password_env: str = field(
        "", "", "Environment variable with that password, in place of a file.", _environment_name
    )
    session_seconds: float = field(
        10.0,
        "seconds",
        "Time after which a hub that is not heard from loses its shards to the others. After two thirds of it a hub "
        "that does not hear from ZooKeeper confirms and delivers nothing. Shorter: a dead hub is replaced "
        "sooner, and a pause (of a virtual machine, of the network) counts as death more often. The ensemble bounds "
        "it to 2 to 20 of its ticks, by default 4 to 40 seconds.",
        _session,
    )
    weight: float = field(
        1.0,
        "",
        "Share of the shards relative to other hubs: 2 takes twice as many as 1, 0 takes none.",
        _weight,
    )
    listen: str = field(
        DEFAULT_ADDRESS,
        "",
        "Where to listen for links of other hubs. Clients can't use it: both ends of a link prove that they are hubs "
        "of the cluster.",
        is_address,
    )
    advertise: str = field(
        "",
        "",
        "Address at which other hubs reach `listen`: `hub-1.example.org:61612`. Empty: `listen`, with the name of this "
        "machine in place of `0.0.0.0`.",
        is_address_or_empty,
    )
    advertise_clients: str = field(
        "",
        "",
        "URL at which clients reach this hub and no other, `stomp://hub-1.example.org:61613`, or several with blanks "
        "between. Clients that follow their destination to its hub connect there. Empty: the listeners, with the name "
        "of this machine in place of `0.0.0.0`. `none`: clients are given no address, and stay where they are.",
        _client_urls,
    )
    secret_file: Path | None = field(
        None,
        "",
        "File with the secret of the cluster, 16 bytes or more, the same at all hubs: `openssl rand -hex 32`. Each "
        "end of a link proves that it knows it, without saying it. A line end behind it does not count.",
        converter=_path,
    )
    secret_env: str = field(
        "", "", "Environment variable with the secret of the cluster, in place of a file.", _environment_name
    )
    tls: TlsConfig = section(
        TlsConfig,
        "TLS of links, both those that come and those that go. The certificate names the hub (`hub-1` as a DNS name in "
        "it). With `client_ca`, its authorities are those of all hubs; else those of the system. With "
        '`client_certificates = "required"` certificates prove who a hub is, and no secret is needed.',
    )

    @property
    def is_on(self) -> bool:
        """Return whether this broker is a hub of a cluster."""
        return bool(self.hub)

    @property
    def has_secret(self) -> bool:
        """Return whether the hubs share a secret."""
        return self.secret_file is not None or bool(self.secret_env)

    def __attrs_post_init__(self) -> None:
        for file, variable in (
            ("coordination_password_file", "coordination_password_env"),
            ("secret_file", "secret_env"),
        ):
            if getattr(self, file) is not None and getattr(self, variable):
                raise ValueError(f"{file} and {variable} are both given: take one")
        has_password = self.coordination_password_file is not None or bool(self.coordination_password_env)
        if has_password and not self.coordination_user:
            raise ValueError("a password for the coordination is given without coordination_user: name the user")
        if self.coordination_user and not has_password:
            raise ValueError(
                "coordination_user is given without a password: add coordination_password_file or "
                "coordination_password_env"
            )
        if self.is_on:
            self._check_hub()

    def _check_hub(self) -> None:
        host, port = split_address(self.listen)
        if host in ANY_HOSTS and port == 0:
            raise ValueError(
                f"listen = {self.listen!r} is no address that other hubs could be told before the hub has it: name a "
                "port, or a host"
            )
        if not self.coordination:
            raise ValueError(
                "hub is given without coordination: name the ZooKeeper servers and a path, as in "
                "zk-1:2181,zk-2:2181/sluiceway/orders. Several hubs on one host need none: `sluiceway serve --hubs`"
            )
        if not self.has_secret and self.tls.client_certificates != "required":
            raise ValueError(
                "nothing would prove that a link comes from a hub of this cluster: give all hubs one secret "
                '(secret_file), or certificates (tls.certificate, tls.client_certificates = "required")'
            )
        if self.tls.client_certificates == "optional":
            raise ValueError(
                'tls.client_certificates = "optional" has no meaning between hubs: say "required", or "none" with a '
                "secret"
            )

    def check_store(self, store: StoreConfig) -> None:
        """Refuse a store that other hubs can't reach. Raises ValueError."""
        if self.coordination and store.engine != "postgresql":
            raise ValueError(
                f"cluster.coordination is set, and store.engine is {store.engine!r}: hubs on several machines keep "
                'messages in a database that all of them reach. Say engine = "postgresql" and its url in [store]; '
                "several hubs on one host keep them in the data folder: `sluiceway serve --hubs`"
            )


def reachable(address: str, port: int) -> str:
    """Return an address of `listen` as others reach it, with the port that was really taken."""
    host = split_address(address)[0]
    host = socket.gethostname() if host in ANY_HOSTS else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
