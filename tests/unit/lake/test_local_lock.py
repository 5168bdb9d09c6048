from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from airflow_cdc_provider.lake.local_lock import locked

HOLD = """
import sys
from airflow_cdc_provider.lake.local_lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def acquire_in_thread(folder: Path) -> threading.Event:
    got = threading.Event()

    def acquire() -> None:
        with locked(str(folder)):
            got.set()

    threading.Thread(target=acquire, daemon=True).start()
    return got


def test_a_second_holder_waits_for_the_first(tmp_path: Path) -> None:
    with locked(str(tmp_path)):
        got = acquire_in_thread(tmp_path)
        assert not got.wait(0.1)
    assert got.wait(10)


def test_folders_are_locked_independently(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with locked(str(tmp_path / "a")):
        assert acquire_in_thread(tmp_path / "b").wait(10)


def test_a_killed_holder_releases_the_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        got = acquire_in_thread(tmp_path)
        assert not got.wait(0.1)
        holder.kill()
        assert got.wait(10)


def test_nothing_is_locked_without_a_folder() -> None:
    with locked(None), locked(None):
        pass
