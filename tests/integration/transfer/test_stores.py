"""Every store keeps its promise: a name stands for a whole file, or for none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connections.stores import SftpStore, s3_store
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.transfer.openssh import OpenSshStore
from airflow_cdc_provider.transfer.stores import FolderStore, RememberingStore, Store
from tests.integration.transfer.conftest import Connect
from tests.unit.transfer.nodes import noise

if TYPE_CHECKING:
    from server_kit import S3Server, SshServer

pytestmark = pytest.mark.integration

KINDS = ("folder", "sftp", "openssh", "s3")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    ask: Callable[[str], Any] = request.getfixturevalue
    if request.param == "folder":
        yield FolderStore(tmp_path / "store")
    elif request.param == "sftp":
        sftp = SftpStore(ask("ssh_conn_id"), str(ask("ssh_folder")))
        yield sftp
        sftp.close()
    elif request.param == "openssh":
        yield openssh(ask("ssh_server"), ask("ssh_folder") / "made" / "when-needed")
    else:
        yield s3_store(ask("aws_conn_id"), ask("s3_url"))


def openssh(server: SshServer, folder: Path) -> OpenSshStore:
    options = ("-P", str(server.port), *server.client_options)
    return OpenSshStore(f"{server.user}@{server.host}", str(folder), options)


def content(store: Store, name: str, begin: int = 0, end: int | None = None) -> bytes:
    return b"".join(store.read(name, begin, end))


def test_a_file_is_what_was_put_last(store: Store) -> None:
    assert store.items() == []
    data = noise(3_000_000)
    store.write("a", iter([data[:1_000_000], data[1_000_000:]]))
    store.write("b", [b""])
    assert sorted((item.name, item.size_bytes) for item in store.items()) == [("a", 3_000_000), ("b", 0)]
    assert all(abs(item.modified - time.time()) < 100 for item in store.items())
    assert content(store, "a") == data
    if isinstance(store, OpenSshStore):  # it would have to take the rest, too
        with pytest.raises(CorruptInput, match="is too large"):
            content(store, "a", 100, 2_500_000)
    else:
        assert content(store, "a", 100, 2_500_000) == data[100:2_500_000]
        assert content(store, "a", 5, 5) == b""
    assert content(store, "a", 2_999_990, 4_000_000) == data[-10:]
    store.write("a", [b"shorter"])
    assert content(store, "a") == b"shorter"
    store.remove("a")
    store.remove("a")
    assert [item.name for item in store.items()] == ["b"]


def test_a_missing_file_is_reported_as_such(store: Store) -> None:
    store.write("b", [b"x"])
    for begin, end in ((0, None), (0, 10)):
        with pytest.raises(FileNotFoundError):
            content(store, "a", begin, end)


def test_what_ends_half_way_is_not_seen_and_is_swept(store: Store) -> None:
    def breaks() -> Iterator[bytes]:
        yield noise(100_000)
        raise InterruptedError("half way")

    store.write("a", [b"old"])
    with pytest.raises((InterruptedError, TransientError)):
        store.write("a", breaks())
    assert content(store, "a") == b"old"
    assert [item.name for item in store.items()] == ["a"]
    store.sweep()


def test_leftovers_are_swept_behind_ssh(ssh_server: SshServer, ssh_folder: Path, ssh_conn_id: str) -> None:
    for store in (openssh(ssh_server, ssh_folder), SftpStore(ssh_conn_id, str(ssh_folder))):
        (ssh_folder / ".a.1-2.part").write_bytes(b"of a killed writer")
        (ssh_folder / "b").write_bytes(b"whole")
        store.sweep()
        assert [file.name for file in ssh_folder.iterdir()] == ["b"]


def test_small_files_are_read_once_by_their_only_writer(tmp_path: Path) -> None:
    read: list[str] = []

    class Noting(FolderStore):
        def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
            if not name.startswith("."):
                read.append(name)
            return super().read(name, begin, end)

    store = RememberingStore(Noting(tmp_path))
    store.write("small", [b"1"])
    store.write("large", [noise(100_000)])
    (tmp_path / "found").write_bytes(b"abc")
    for _ in range(3):
        store.items()
        assert (content(store, "small"), content(store, "found")) == (b"1", b"abc")
        assert content(store, "large", 5, 7) == noise(100_000)[5:7]
    assert read == ["found", "large", "large", "large"]
    (tmp_path / "found").unlink()
    store.items()
    with pytest.raises(FileNotFoundError):
        content(store, "found")


def test_who_is_not_let_in_gets_the_reason(
    ssh_server: SshServer, connect: Connect, s3_server: S3Server, tmp_path: Path
) -> None:
    from server_kit.s3 import KEY, SECRET

    wrong_key = connect(
        conn_type="ssh",
        host=ssh_server.host,
        port=ssh_server.port,
        login=ssh_server.user,
        extra={"key_file": str(ssh_server.folder / "host_key"), "no_host_key_check": True},
    )
    with pytest.raises(ConfigurationError, match="has no access to /raw"):
        SftpStore(wrong_key, "/raw").items()
    nobody_there = connect(
        conn_type="aws", login=KEY, password=SECRET, extra={"endpoint_url": "http://127.0.0.1:1"}
    )
    with pytest.raises(TransientError, match=r"s3://landing/x/ can't be reached"):
        s3_store(nobody_there, "s3://landing/x").items()
    extra = {"endpoint_url": s3_server.endpoint, "role_arn": "arn:aws:iam::1:role/x"}
    role = connect(conn_type="aws", extra=extra)
    with pytest.raises(ConfigurationError, match=r"extra role_arn.*use profile_name"):
        s3_store(role, "s3://landing/x")
    keys = {"endpoint_url": s3_server.endpoint, "region_name": "eu-central-1"}
    known = connect(conn_type="aws", login=KEY, password=SECRET, extra=keys)
    with pytest.raises(ConfigurationError, match="is denied: found NoSuchBucket"):
        s3_store(known, "s3://no-such-bucket/x").items()
    assert SECRET not in str(known)
    gone = OpenSshStore("nobody@127.0.0.1", "/raw", ("-P", "1", "-F", "/dev/null"))
    with pytest.raises(TransientError, match=r"nobody@127.0.0.1 can't be reached"):
        gone.items()
