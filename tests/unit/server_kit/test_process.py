"""A server ends with all that it started when the process that wants it is gone, and its log is bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit.process import ServerProcess

ROOT = Path(__file__).parents[3]
STUBBORN = "trap '' TERM HUP INT; while :; do echo noise noise noise; done"
"""Ignores what asks it to end, and logs without end."""
ESCAPED = f'(setsid sh -c "{STUBBORN}" &) ; (setsid env -i sleep 600 &) ; '
"""Two grandchildren in sessions of their own, whose parent has ended; one without the environment."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def running(pids: set[int]) -> set[int]:
    return {pid for pid in pids if state(pid) not in ("", "Z")}


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def below(pid: int) -> set[int]:
    """All processes below one."""
    own: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                own.add(int(path.parent.name))
        except OSError:
            continue
    return own.union(*(below(child) for child in own))


def await_that(holds: Callable[[], bool], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def started(folder: Path, script: str, log_bytes: int = 64 << 20) -> ServerProcess:
    process = ServerProcess("a server", folder / "log", log_bytes=log_bytes)
    process.start(["sh", "-c", script], folder / "log")
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_process_that_wanted_the_server(folder: Path, number: signal.Signals) -> None:
    program = (
        "import sys, time; from pathlib import Path; from server_kit.process import ServerProcess\n"
        f"one = ServerProcess('a server', Path({str(folder / 'log')!r}))\n"
        f"one.start(['sh', '-c', {ESCAPED + STUBBORN!r}], one.log)\n"
        "print(one.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        server = int(starter.stdout.readline())
        await_that(lambda: len(below(starter.pid)) >= 4, "the keeper, the server and what escaped it")
        all_of_it = below(starter.pid)
        assert server in all_of_it
        starter.send_signal(number)
    await_that(lambda: not running(all_of_it), "nothing is left")


def test_nothing_outlives_a_keeper_but_what_left_the_server(folder: Path) -> None:
    one = started(folder, STUBBORN)
    (keeper,) = (pid for pid in below(os.getpid()) if one.pid in below(pid))
    os.kill(keeper, signal.SIGKILL)
    server = one.pid if one.running else 0
    await_that(lambda: not running({server} - {0}), "the kernel ends it")
    assert not one.running


@pytest.mark.parametrize("script", [f"{ESCAPED} echo no place; exit 3", f"{ESCAPED} exec sleep 600"])
def test_a_start_that_failed_leaves_nothing(folder: Path, script: str) -> None:
    others = below(os.getpid())
    one = started(folder, script)
    seen: set[int] = set()

    def ready() -> bool:
        seen.update(below(os.getpid()) - others)
        return False

    with pytest.raises(ConfigurationError, match=r"exit code 3|no answer after"):
        one.wait_until(ready, "answer", 0.5)
    assert not running(seen & below(os.getpid()))
    assert not one.running


def test_a_program_that_is_missing_is_reported(folder: Path) -> None:
    one = ServerProcess("a server", folder / "log")
    one.start(["/no/such/program"], folder / "log")
    with pytest.raises(ConfigurationError, match=r"exit code 127(.|\n)*/no/such/program can't be started"):
        one.wait_until(lambda: False, "answer", 10)


def test_a_log_is_bounded_and_keeps_its_end(folder: Path) -> None:
    loud = "while :; do echo 0123456789012345678901234567890123456789; done"
    one = started(folder, f"{loud} & {loud}", log_bytes=1 << 20)
    try:
        await_that(lambda: b"too large, and was cut" in (folder / "log").read_bytes()[:100], "it is cut", 30)
        assert "0123456789" in one.log_tail(2)
        assert one.running
    finally:
        one.end()


def test_a_stop_leaves_time_to_what_the_server_started(folder: Path) -> None:
    orderly = f"(trap 'sleep 0.3; echo done > {folder}/done; exit' TERM; while :; do sleep 0.05; done) & "
    one = started(
        folder, f"{orderly} child=$!; trap 'kill $child; exit 0' TERM; while :; do sleep 0.05; done"
    )
    time.sleep(0.2)
    one.stop()
    assert not one.running
    await_that((folder / "done").exists, "it has ended in order")
    one.end()


def test_a_server_outlives_the_thread_that_started_it(folder: Path) -> None:
    found: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: found.append(started(folder, "exec sleep 600")))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert found[0].running
    pid = found[0].pid
    found[0].kill()
    assert not running({pid})
    with pytest.raises(RuntimeError, match="is not running"):
        assert found[0].pid


def test_a_server_starts_again(folder: Path) -> None:
    one = started(folder, "echo first; exec sleep 600")
    with pytest.raises(RuntimeError, match="is running already"):
        one.start(["true"], folder / "log")
    await_that(lambda: "first" in (folder / "log").read_text(), "the first log")
    one.stop()
    one.start(["sh", "-c", "echo $WORD; trap '' TERM; sleep 600"], folder / "log", {"WORD": "second"})
    await_that(lambda: "second" in (folder / "log").read_text(), "the log of both")
    assert (folder / "log").read_text().startswith("first")
    one.stop(timeout_seconds=0.1)
    assert not one.running
    one.end()
