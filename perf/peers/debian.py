"""Installing a Debian package for a measurement, without leaving its service running."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from perf.peers.port import PeerError


def ensure_package(package: str, proof: Path) -> None:
    """Install `package` with apt unless the file `proof`, which it brings, exists.

    Needs root, or sudo that asks for no password. A service that the package starts is stopped: the measured broker is
    a node of its own on a port of its own.

    Raises PeerError: there is no apt, no right to use it, or it failed.
    """
    if proof.exists():
        return
    if shutil.which("apt-get") is None:
        raise PeerError(f"{package} is not installed and this is no Debian: install it by hand so that {proof} exists")
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", package],
    ):
        done = subprocess.run(
            [*prefix, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise PeerError(
                f"`{' '.join([*prefix, *command])}` failed with status {done.returncode}; "
                f"install {package} by hand.\n{done.stdout[-1500:]}"
            )
    service = shutil.which("service")
    if service is not None:
        # Where the package has no service of that name, or starting was denied, there is nothing to stop: status is
        # irrelevant.
        subprocess.run(
            [*prefix, service, package, "stop"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
    if not proof.exists():
        raise PeerError(f"{package} was installed but did not bring {proof}: its version is not one this adapter knows")
