"""Where the disk of large bodies or of logs is not mounted a broker says so, and does not write beneath it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluiceway.store.marks import MARK
from tests.interop.raw_client import RawClient, frame
from tests.sluiceway.broker_process import BrokerProcess, command, environment

BODY = b"0123456789abcdef" * 20_000
CONFIG = 'listeners = [{ address = "127.0.0.1:0", limits.large_body_bytes = 65536 }]\n'


def start(folder: Path) -> BrokerProcess:
    return BrokerProcess(folder, "--config", "sluiceway.toml", "--data", "data", listen=None)


def refused(folder: Path) -> str:
    """What it said."""
    ended = subprocess.run(
        command("serve", "--config", "sluiceway.toml", "--data", "data"),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 6
    assert ended.stdout == "", "it is not ready"
    return " ".join(ended.stderr.split())


def put(client: RawClient, destination: str, body: bytes) -> None:
    client.send(frame("SEND", body, length=True, destination=destination, persistent="true", receipt="r"))
    assert client.expect("RECEIPT")["receipt-id"] == "r"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a large body and a log; its broker was killed."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "sluiceway.toml").write_text(CONFIG)
    with start(folder) as process, RawClient(process.address) as client:
        client.connect()
        put(client, "/queue/large", BODY)
        put(client, "/log/orders", b"a record")
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it: as restored from a backup."""
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def check(folder: Path, *, large: bool = True) -> None:
    """A broker has all that it had."""
    with start(folder) as process, RawClient(process.address) as client:
        client.connect()
        client.send(frame("SUBSCRIBE", destination="/log/orders", id="log", **{"from": "earliest"}))
        assert client.expect("MESSAGE").body == b"a record"
        client.send(frame("SUBSCRIBE", destination="/queue/large", id="large", ack="client"))
        if large:
            assert client.expect("MESSAGE").body == BODY
        else:
            assert client.expect("ERROR")["message"]


def test_a_copy_is_opened_as_the_original(folder: Path) -> None:
    check(folder)
    check(folder)


@pytest.mark.parametrize("name", ["large", "logs"])
def test_a_mount_point_without_its_disk_is_refused_until_it_is_back(folder: Path, name: str) -> None:
    place = folder / "data" / name
    place.rename(folder / "elsewhere")
    place.mkdir()
    assert f"data/{name}, which has" in refused(folder)
    assert "Mount the disk" in refused(folder)
    assert not list(place.iterdir())
    place.rmdir()
    (folder / "elsewhere").rename(place)
    check(folder)


def test_a_folder_of_an_earlier_version_is_taken_up_and_known_from_then_on(folder: Path) -> None:
    data = folder / "data"
    for mark in (data / "marks", data / "large" / MARK, data / "logs" / MARK):
        mark.unlink()
    check(folder)
    for name in ("large", "logs"):
        (data / name).rename(folder / "elsewhere")
        (data / name).mkdir()
        assert "has no mark" in refused(folder)
        (data / name).rmdir()
        (folder / "elsewhere").rename(data / name)


def test_of_an_earlier_version_all_bodies_are_missed_until_an_operator_gives_them_up(folder: Path) -> None:
    """It has no marks; but records name bodies, and there is none."""
    data = folder / "data"
    for path in (data / "marks", data / "large", data / "logs" / MARK):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "data/large has none of the 1 bodies that messages have. Mount the disk" in refused(folder)
    assert not list((data / "large").iterdir())
    (data / "large" / MARK).touch()
    check(folder, large=False)
