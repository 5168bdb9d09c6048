"""Other users of a worker can't place what a job executes: a spec names classes that are imported."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.jobs import application
from airflow_cdc_provider.jobs.spec import JobResult, JobSpec
from airflow_cdc_provider.jobs.stream import StreamState
from airflow_cdc_provider.notifications.channels import FileChannel as Appending
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.regular_files import write_private
from airflow_cdc_provider.secrets import read_private
from airflow_cdc_provider.signals.files import FileChannel, FolderChannel, send
from airflow_cdc_provider.tasks.run_folder import RunFolder, sweep
from airflow_cdc_provider.tasks.stream_application import StreamFolder
from airflow_cdc_provider.tasks.work_folder import signals_folder, stream_folder
from airflow_cdc_provider.trusted_paths import read_trusted
from tests.bounded import bounded
from tests.security.hostile_files import IRREGULAR, OTHER_USER, replace

PARTS: Final = ("shop", "dag", "run", "sync.-1")


def _folder_of(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return make


def _others_folder(path: Path) -> None:
    path.mkdir(0o700)
    os.chown(path, OTHER_USER, OTHER_USER)


UNTRUSTED: Final[dict[str, Callable[[Path], None]]] = {
    **{name: make for name, make in IRREGULAR.items() if name not in ("folder", "link to itself")},
    "file": Path.touch,
    **{
        f"folder of mode 0{mode:o}": _folder_of(mode) for mode in (0o777, 0o1777, 0o757, 0o722, 0o702, 0o2772)
    },
    **({"another user's folder": _others_folder} if os.geteuid() == 0 else {}),
}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("level", range(len(PARTS)))
def test_a_folder_that_others_may_change_is_refused_at_each_level(level: int, tmp_path: Path) -> None:
    for number, make in enumerate(UNTRUSTED.values()):
        work = tmp_path / str(number)
        place = work.joinpath(*PARTS[: level + 1])
        place.parent.mkdir(0o700, parents=True)
        make(place)
        with pytest.raises(
            ConfigurationError, match=f"folder {place} is not trusted.*expected.*found.*chmod"
        ):
            RunFolder.open(str(work), *PARTS)
        if level == 0:
            for find in (stream_folder, signals_folder):
                with pytest.raises(ConfigurationError, match="is not trusted"):
                    find(str(work), PARTS[0])


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o702])
def test_a_work_folder_in_which_anyone_may_replace_folders_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"anyone may replace .*mode 0{mode:o}"):
        RunFolder.open(str(tmp_path), *PARTS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_work_folder_for_everyone_belongs_to_its_user_or_root(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    for mode, refused in ((0o1777, True), (0o1757, True), (0o2775, False), (0o755, False)):
        tmp_path.chmod(mode)
        if refused:
            with pytest.raises(ConfigurationError, match=f"belongs to user id {OTHER_USER}"):
                RunFolder.open(str(tmp_path), *PARTS)
        else:
            assert RunFolder.open(str(tmp_path), *PARTS).path.exists()


def _as_kubelet(work: Path) -> None:
    """Do what a mount with fsGroup does."""
    for path in (work, *work.rglob("*")):
        path.chmod(path.stat().st_mode | (0o2070 if path.is_dir() else 0o060))


def test_folders_that_a_mount_opened_for_a_group_are_closed_again(tmp_path: Path) -> None:
    work = str(tmp_path / "cdc")
    signals_folder(work, "shop", create=True)
    folder = RunFolder.open(work, *PARTS)
    folder.write_connection({"password": "x"})
    _as_kubelet(Path(work))
    again = RunFolder.open(work, *PARTS)
    assert signals_folder(work, "shop").stat().st_mode & 0o7777 == 0o700
    again.write_connection({"password": "y"})
    assert json.loads(read_private(str(again.connection_path), "the connection")) == {"password": "y"}
    for place in (again.path, *list(again.path.parents)[:3]):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    again.remove_connection()


WRITERS: Final[dict[str, Callable[[Path], object]]] = {
    "result.json": lambda folder: JobResult(ok=True).write(str(folder / "result.json")),
    "state.json": lambda folder: StreamState(1, "h", "shop", 0.0, 0.0).write(folder / "state.json"),
    "spec.json": lambda folder: RunFolder(folder).write_spec(JobSpec("sync", {}, "/r")),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("suffix", ["", ".part"])
def test_what_a_job_writes_is_never_written_through_a_link(name: str, suffix: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "run" / (name + suffix)).symlink_to(victim)
    with umask(0):
        WRITERS[name](tmp_path / "run")
    assert victim.read_text() == "kept"
    assert stat.S_IMODE((tmp_path / "run" / name).lstat().st_mode) == 0o600
    assert (tmp_path / "run" / name).read_text().startswith("{")


def test_lines_are_never_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lines").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="it is a link"):
        Appending(tmp_path / "lines").send(Notification("1", "Initial Snapshot", "STARTED", {}))
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    "link", [(), ("cdc-run-a",), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]
)
def test_a_sweep_follows_no_link_and_removes_what_it_names_alone(
    link: tuple[str, ...], tmp_path: Path
) -> None:
    victim = tmp_path / "victim" / "d"
    names = ["connection.json", "connection.json.part", "connection.json.backup", "connection.jsonl"]
    work = tmp_path / "work"
    (work / "cdc-run-b").mkdir(parents=True)
    (work / "shop" / "dag" / "run" / "task").mkdir(parents=True)
    victim.mkdir(parents=True)
    for folder in (victim, victim.parent, work / "cdc-run-b", work / "shop" / "dag" / "run" / "task"):
        for name in names:
            (folder / name).touch()
            os.utime(folder / name, (0, 0))
    if link:
        place = work.joinpath(*link)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(victim if link[0] == "cdc-run-a" or len(link) == 4 else victim.parent)
    sweep(work)
    sweep(work, ["cdc-run-*"])
    assert sorted(f.name for f in victim.iterdir()) == sorted(names)
    for folder in (work / "cdc-run-b", work / "shop" / "dag" / "run" / "task"):
        assert sorted(f.name for f in folder.iterdir()) == names[2:]


def test_locks_are_taken_by_descriptors_that_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of a client of NFS is one of bytes, which needs that (flock(2))."""

    def as_nfs(file: int, operation: int) -> None:
        access = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        assert access == os.O_RDWR or (access == os.O_WRONLY and not operation & fcntl.LOCK_SH)

    monkeypatch.setattr("fcntl.flock", as_nfs)
    folder = RunFolder.open(str(tmp_path), *PARTS)
    folder.write_connection({"password": "x"})
    folder.remove_connection()
    write_private(folder.connection_path, "{}")
    os.utime(folder.connection_path, (0, 0))
    sweep(tmp_path)
    assert not folder.connection_path.exists()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o770, 0o2775, 0o1777])
@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_shared_work_folders_work_and_all_below_is_private_whatever_the_umask(
    mode: int, mask: int, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    linked = tmp_path / "linked"  # whoever configures the work folder may configure a link
    linked.symlink_to(shared)
    with umask(mask):
        folder = RunFolder.open(str(linked / "cdc"), *PARTS).path
        assert RunFolder.open(str(linked / "cdc"), *PARTS).path == folder
        signals = signals_folder(str(linked / "cdc"), "shop", create=True)
    for place in (folder, *list(folder.parents)[:4], signals):
        assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0, place


def _spec(path: Path) -> Path:
    path.write_text('{"stage": "none"}')
    path.chmod(0o600)
    return path


def assert_ends(spec: Path, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that a job with a spec ends, with an error in its log."""
    caplog.clear()
    assert application.main([str(spec)]) == 1
    assert re.search(words, caplog.text)


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o620, 0o602, 0o777])
def test_a_spec_that_others_may_change_is_not_read(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = _spec(tmp_path / "spec.json")
    spec.chmod(mode)
    assert_ends(spec, rf"job's spec is not trusted.*mode 0{mode:o}.*chmod go-w", caplog)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o444])
def test_another_users_spec_is_not_read(mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = _spec(tmp_path / "spec.json")
    spec.chmod(mode)
    os.chown(spec, OTHER_USER, OTHER_USER)
    assert_ends(spec, f"belongs to user id {OTHER_USER}", caplog)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o644, 0o444])
def test_a_spec_that_only_its_owner_may_change_is_read(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = _spec(tmp_path / "spec.json")
    spec.chmod(mode)
    mounted = tmp_path / "as in Kubernetes"
    mounted.symlink_to(spec)
    for path in (spec, mounted):
        assert_ends(path, "not a valid job spec", caplog)


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_spec_that_is_no_file_ends_at_once(kind: str, tmp_path: Path) -> None:
    if kind == "link to a file":
        return
    (tmp_path / "folder").mkdir()
    spec = tmp_path / "folder" / "spec.json"
    IRREGULAR[kind](spec)
    with bounded(seconds=1), pytest.raises(ConfigurationError, match="spec"):
        read_trusted(str(spec), "the job's spec")


@pytest.mark.parametrize("kind", IRREGULAR)
def test_signals_are_read_from_regular_files_alone(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "signals"
    identity = send(folder, "log", {"message": "kept"})
    IRREGULAR[kind](folder / "0.json")
    IRREGULAR[kind](tmp_path / "signals" / "file.taken-0") if kind != "link to a pipe" else None
    IRREGULAR[kind](tmp_path / "signals" / "file") if kind != "link to a pipe" else None
    with bounded(seconds=1):
        channel = FolderChannel(folder)
        assert [received.id for received in channel.receive()] == [identity]
        channel.done()
        assert FileChannel(folder / "file").receive() == []
    assert (folder / "0.json").is_symlink() or (folder / "0.json").exists()


def test_a_signal_that_turns_into_a_pipe_while_it_is_read_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(tmp_path, "log", {})
    (path,) = tmp_path.glob("*.json")
    replace(path, os.mkfifo)
    monkeypatch.setattr("airflow_cdc_provider.signals.files.is_regular", lambda path: True)
    with bounded(seconds=1), pytest.raises(TransientError, match="named pipe"):
        FolderChannel(tmp_path).receive()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_application_is_recognised_by_its_user_its_command_and_its_start(tmp_path: Path) -> None:
    folder = StreamFolder(tmp_path)
    command = ["sh", "-c", "read line", "application.py", str(folder.spec_path)]

    def written(pid: int, heartbeat_at: float) -> None:
        state = StreamState(pid, socket.gethostname(), "shop", 0.0, heartbeat_at)
        state.write(folder.state_path)

    with ExitStack() as opened:
        ours, others = (
            opened.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, user=user))
            for user in (None, OTHER_USER)
        )
        assert [one.pid for one in folder.processes("application.py")] == [ours.pid]
        for process, ago, status in (
            (ours, 0.0, "running"),
            (others, 0.0, "dead"),
            (ours, 3600.0, "dead"),  # it has got the number of one that ended
        ):
            written(process.pid, time.time() - ago)
            assert folder.health(7200).status == status
            if status == "dead":
                folder.request_stop()
                assert process.poll() is None
        written(ours.pid, time.time())
        folder.request_stop()
        assert ours.wait(10) == -signal.SIGTERM
