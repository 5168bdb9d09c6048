"""Servers that the workers of a run share."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from server_kit.server import Server
from tests.shared_servers import shared


class Recorded(Server):
    """A server without a process, that writes down what happens to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__("Recorded", folder, host="127.0.0.1", port=1, log="log")

    def note(self, text: str) -> None:
        with (self.folder / "story").open("a") as story:
            story.write(f"{text}\n")

    def start(self) -> Self:
        self.note("start")
        return self

    def stop(self) -> None:
        self.note("stop")

    def _close_clients(self) -> None:
        """There are none."""


def test_the_first_worker_starts_a_server_and_stops_it_after_the_others_have_ended(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with shared(lambda: Recorded(tmp_path), tmp_path / "run"):
            started.set()
            may_end.wait(10)

    with ThreadPoolExecutor(1) as pool:
        owner = pool.submit(first)
        assert started.wait(10)
        with shared(lambda: Recorded(tmp_path), tmp_path / "run") as server:
            may_end.set()
            deadline = time.monotonic() + 10
            while (tmp_path / "run" / "running").exists():  # until the first is about to stop it
                assert time.monotonic() < deadline
                time.sleep(0.01)
            server.note("use")
            assert not owner.done()
        owner.result(10)
    assert (tmp_path / "story").read_text().split() == ["start", "use", "stop"]
