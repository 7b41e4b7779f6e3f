"""How facts are found: on a real folder, real sockets, and tables of Linux that a test writes."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest

from sluiceway.config import Config, Listener, SecurityConfig
from sluiceway.config.admin import AdminConfig
from sluiceway.doctor import probes
from sluiceway.doctor.facts import TracingFacts
from sluiceway.doctor.ports import holder_of, look_at_port
from sluiceway.doctor.software import look_at_software
from sluiceway.protocols.settings import TlsConfig
from sluiceway.store.directory import DirectoryError, lock_state, look_at, open_directory
from sluiceway.tracing.config import TracingConfig

NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
MEMORY_DISK = Path("/dev/shm")

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:27 / /mnt/my\\040share rw - nfs4 server:/x rw
32 31 0:28 / /mnt/my\\040share rw - cifs //server/x rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "ext4"), ("/tmp", "tmpfs"), ("/tmp/deep/er", "tmpfs"), ("/tmpfile", "ext4"), ("/mnt/my share/a", "cifs")],
)
def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path, path: str, kind: str) -> None:
    """And of those at one place the one that lies on top."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert probes.file_system_of(Path(path), mounts) == kind


def test_where_the_system_does_not_tell_nothing_is_known(tmp_path: Path) -> None:
    assert probes.file_system_of(tmp_path, tmp_path / "none") is None
    assert holder_of(1, tmp_path) == (None, "")


def test_a_folder_that_is_not_there_is_looked_for_above(tmp_path: Path) -> None:
    folder = probes.look_at_folder(tmp_path / "a" / "b")
    assert (folder.exists, folder.parent, folder.parent_is_writable) == (False, tmp_path, True)
    assert not (tmp_path / "a").exists(), "nothing is made"


def test_a_file_in_the_way_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "file" in probes.look_at_folder(path).fault


def test_a_folder_that_was_closed_in_order_is_well(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data"):
        pass
    folder = probes.look_at_folder(tmp_path / "data")
    assert (folder.exists, folder.fault, folder.lock_is_held, folder.lock_pid) == (True, "", False, None)
    assert folder.mode == 0o700
    assert folder.free_bytes is not None
    assert folder.sync_fault == ""
    assert folder.sync_seconds is not None
    assert folder.newest_seconds is not None


def test_a_folder_in_use_names_its_user_and_stays_in_use(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as directory:
        folder = probes.look_at_folder(directory.path)
        assert (folder.lock_is_held, folder.lock_pid) == (True, os.getpid())
        assert lock_state(directory.path).is_held


def test_looking_does_not_keep_a_folder_from_being_opened(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data"):
        pass
    lock_state(tmp_path / "data")
    with open_directory(tmp_path / "data"):
        pass


def test_a_folder_that_was_not_closed_names_who_had_it(tmp_path: Path) -> None:
    """What kill -9 leaves: the name in a lock that nobody holds."""
    with open_directory(tmp_path / "data"):
        pass
    (tmp_path / "data" / "lock").write_text("4711 some-host\n")
    folder = probes.look_at_folder(tmp_path / "data")
    assert (folder.lock_is_held, folder.lock_pid, folder.lock_host) == (False, 4711, "some-host")


def test_stored_messages_in_the_value_log_are_weighed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with open_directory(data):
        assert probes.look_at_folder(data).values_bytes == 0
    (data / "values").mkdir(exist_ok=True)
    (data / "values" / "7.values").write_bytes(bytes(1000))
    (data / "values" / "7.pages").write_bytes(bytes(10))
    assert probes.look_at_folder(data).values_bytes == 1000


def paged_out(data: Path) -> Path:
    """A folder with one page file of 1,000 bytes in it."""
    with open_directory(data):
        assert probes.look_at_folder(data).paged_bytes == 0
    (data / "paged").mkdir()
    (data / "paged" / "7.pages").write_bytes(bytes(1000))
    return data / "paged"


def test_what_is_paged_out_is_weighed(tmp_path: Path) -> None:
    paged_out(tmp_path / "data")
    folder = probes.look_at_folder(tmp_path / "data")
    assert (folder.paged_bytes, folder.paged_path, folder.paged_free_bytes) == (1000, None, None)


@pytest.mark.skipif(
    not MEMORY_DISK.is_dir() or MEMORY_DISK.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev,
    reason="one disk only",
)
def test_pages_on_another_disk_are_told_with_their_place(tmp_path: Path) -> None:
    paged = paged_out(tmp_path / "data")
    paged.rename(tmp_path / "data" / "paged.before")
    paged.symlink_to(MEMORY_DISK)
    folder = probes.look_at_folder(tmp_path / "data")
    assert folder.paged_path == MEMORY_DISK.resolve() and folder.paged_free_bytes is not None


def test_another_format_and_a_lost_database_are_faults(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data"):
        pass
    (tmp_path / "data" / "format").write_text("sluiceway-store 99\n")
    assert "has format 99" in probes.look_at_folder(tmp_path / "data").fault
    (tmp_path / "data" / "format").write_text("sluiceway-store 1\n")
    (tmp_path / "data" / "db").rename(tmp_path / "elsewhere")
    assert "which has the messages, is missing" in probes.look_at_folder(tmp_path / "data").fault


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DirectoryError):
        look_at(tmp_path / "file")


def test_a_folder_that_can_not_be_looked_into_is_a_fault_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below /var/lib/private, which systemd keeps for root."""
    hidden, stat = tmp_path / "private" / "data", Path.stat
    hidden.parent.mkdir()

    def no_entry(path: Path, **options: bool) -> os.stat_result:
        if hidden.parent in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", no_entry)
    found = probes.look_at_folder(hidden / "deeper")
    assert f"{hidden.parent} can't be entered by this user" in found.fault
    assert "Run the doctor as the broker's user" in found.fault


def test_what_goes_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that runs makes and removes files in its folder."""
    (tmp_path / "here").write_text("x")
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "gone", folder / "here"]))
    assert probes._written(tmp_path) == [(tmp_path / "here").stat().st_mtime]


@NOT_ROOT
def test_a_folder_of_somebody_else_is_not_ours_to_write(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    assert not probes.look_at_folder(tmp_path / "data").parent_is_writable


def test_a_folder_where_nothing_can_be_made_can_not_sync(tmp_path: Path) -> None:
    seconds, fault = probes.try_sync(tmp_path / "missing")
    assert seconds is None
    assert "No such file" in fault


def test_what_was_moved_aside_is_counted(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as directory:
        directory.attic_put("x", b"y")
    assert probes.look_at_folder(tmp_path / "data").attic_count == 1


def test_a_free_port_is_free_and_a_taken_one_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        taken = look_at_port("listener", f"127.0.0.1:{number}")
        assert (taken.in_use, taken.number) == (True, number)
        if Path("/proc/net/tcp").exists():
            assert taken.holder_pid == os.getpid()
            assert taken.holder
    assert look_at_port("listener", f"127.0.0.1:{number}").fault == ""


def test_an_address_of_another_machine_is_a_fault() -> None:
    port = look_at_port("listener", "192.0.2.1:61613")
    assert port.fault
    assert not port.in_use


def test_a_host_that_is_not_known_is_a_fault() -> None:
    assert "is not known" in look_at_port("listener", "no-such-host.invalid:61613").fault


def test_this_machine_has_limits_and_a_clock() -> None:
    machine, clock = probes.look_at_machine(), probes.look_at_clock()
    assert machine.open_files_max is None or machine.open_files_max > 0
    assert not clock.monotonic_went_back
    assert clock.now_seconds > 1_700_000_000


def test_a_container_has_the_memory_that_it_may_use(tmp_path: Path) -> None:
    assert probes._container_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert probes._container_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("536870912\n")
    assert probes._container_limit(tmp_path) == 536_870_912


def test_this_environment_has_what_it_needs() -> None:
    software = look_at_software()
    assert software.binding_fault == ""
    assert all(package.version is not None for package in software.packages if not package.extra)


def test_ports_of_listeners_and_admin_are_looked_at_but_not_those_that_are_any() -> None:
    config = Config(listeners=[Listener(address="127.0.0.1:0"), Listener(address="127.0.0.1:1", name="low")])
    assert [port.label for port in probes.look_at_ports(config)] == ["listener low"]


def test_a_certificate_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    listener = Listener(address="127.0.0.1:0", tls=TlsConfig(certificate=tmp_path / "none.pem"))
    [certificate] = probes.look_at_certificates(Config(listeners=[listener]))
    assert "none.pem" in certificate.fault


def test_the_certificate_of_the_admin_port_is_looked_at_too(tmp_path: Path) -> None:
    admin = AdminConfig(address="127.0.0.1:1", tls=TlsConfig(certificate=tmp_path / "none.pem"))
    [certificate] = probes.look_at_certificates(Config(admin=admin))
    assert certificate.label == "admin"
    assert "none.pem" in certificate.fault


def test_a_certificate_and_its_key_are_read_as_the_broker_reads_them(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    ours = trustme.CA().issue_cert("localhost")
    pem, key, other = tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "other.key"
    ours.cert_chain_pems[0].write_to_path(str(pem))
    ours.private_key_pem.write_to_path(str(key))
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(str(other))

    def look(key_path: Path) -> Config:
        return Config(listeners=[Listener(address="127.0.0.1:0", tls=TlsConfig(certificate=pem, key=key_path))])

    [good] = probes.look_at_certificates(look(key))
    assert good.fault == ""
    assert good.ends_seconds is not None
    [bad] = probes.look_at_certificates(look(other))
    assert bad.fault


def test_users_are_told_apart_by_how_their_passcodes_are_kept(tmp_path: Path) -> None:
    access = probes.look_at_access(Config(security=SecurityConfig(users={"ann": "secret"})))
    assert (access.has_users, access.plain_users, access.has_permissions) == (True, ("ann",), False)
    wrong = SecurityConfig(users={"ann": "x"}, groups={"staff": ("bob",)})
    assert "bob" in probes.look_at_access(Config(security=wrong)).fault


def test_the_collector_of_traces_is_connected_to() -> None:
    def look(port: int) -> TracingFacts | None:
        endpoint = f"http://127.0.0.1:{port}/v1/traces"
        return probes.look_at_tracing(Config(tracing=TracingConfig(enabled=True, endpoint=endpoint)))

    assert probes.look_at_tracing(Config()) is None, "nobody asked for traces"
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        there = look(number)
    assert there is not None
    assert there.fault == ""
    gone = look(number)
    assert gone is not None
    assert "refused" in gone.fault
    wrong = probes.look_at_tracing(Config(tracing=TracingConfig(enabled=True, endpoint="http://[abc/v1")))
    assert wrong is not None
    assert wrong.fault


def test_files_with_secrets_are_those_that_have_some(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("")
    file.chmod(0o644)
    assert probes.look_at_secret_files(file, Config()) == ()
    [found] = probes.look_at_secret_files(file, Config(security=SecurityConfig(users={"ann": "secret"})))
    assert (found.path, found.mode) == (file, 0o644)
