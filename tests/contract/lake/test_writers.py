"""Several writers, each a process with a Spark of its own: races, kills, and maintenance in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.contract.lake.sessions import CATALOGS, jars
from tests.contract.lake.worker import ROWS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("iceberg_jar")]

ROOT = Path(__file__).resolve().parents[3]


class WriterProcess:
    """The other end of :mod:`tests.contract.lake.worker`."""

    def __init__(self, folder: Path, catalog: str) -> None:
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.contract.lake.worker", os.fspath(folder), catalog],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                # Iceberg is on the class path, and sees the drivers that are there.
                env={
                    **os.environ,
                    "PYTHONPATH": os.fspath(ROOT),
                    "SPARK_DIST_CLASSPATH": os.pathsep.join([os.environ["SPARK_DIST_CLASSPATH"], *jars()]),
                },
                start_new_session=True,
            )

    def __enter__(self) -> WriterProcess:
        assert self.answer() == {"ready": True}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def send(self, *command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """One answer; None from a process that was killed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            if self.process.wait(30) != -signal.SIGKILL:
                lines = self.log.read_text(errors="replace").splitlines()
                raise AssertionError("\n".join(line for line in lines if not line.startswith("\tat"))[-3000:])
            return None
        return dict(json.loads(line))

    def ask(self, *command: Any) -> dict[str, Any]:
        self.send(*command)
        answer = self.answer()
        assert answer is not None
        return answer

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                # What the buffer holds for a process that has ended can't be flushed.
                with suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture(params=CATALOGS, scope="module")
def catalog(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not jars():
        pytest.skip(
            "Iceberg's and SQLite's jars are neither in the local Maven repository nor to be had by mvn"
        )
    return tmp_path_factory.mktemp("writers")


@pytest.fixture(scope="module")
def two_processes(folder: Path, catalog: str) -> Iterator[list[WriterProcess]]:
    with ExitStack() as stack:
        both = [WriterProcess(folder, catalog) for _ in range(2)]
        for writer in both:
            stack.callback(writer.kill)
        for writer in both:
            assert writer.answer() == {"ready": True}
        yield both


@pytest.fixture
def namespace() -> str:
    return f"n{uuid.uuid4().hex[:8]}"


@pytest.fixture
def both(two_processes: list[WriterProcess], namespace: str) -> list[WriterProcess]:
    """Two writers of one changes table, which is new."""
    for writer in two_processes:
        writer.send("use", namespace)
    states = [writer.answer() for writer in two_processes]
    assert states == [{"batch": 0, "offset": None}] * 2
    return two_processes


def check_nothing_lost_or_doubled(writer: WriterProcess) -> int:
    """Each change up to the stored offset is there once; return how many batches there are."""
    state = writer.ask("read")
    reached = state["offset"]["stream"]["position"] if state["offset"] else 0
    assert writer.ask("positions")["positions"] == list(range(reached))
    assert reached == state["batch"] * ROWS
    return int(state["batch"])


def race(both: list[WriterProcess], rounds: int) -> None:
    for number in range(1, rounds + 1):
        begin = time.time() + 0.2
        # Now and then one of them is late: while the other writes, or after its commit.
        late = random.Random(number).choice([0.0, 0.0, 0.0, 0.1, 1.0])
        both[0].send("append", begin)
        both[1].send("append", begin + late)
        outcomes = [writer.answer() for writer in both]
        assert sorted(outcomes, key=str) == [{"batch": number}, {"error": "COMMIT-CONFLICT"}], number
        for writer in both:
            assert writer.ask("read")["batch"] == number
    assert check_nothing_lost_or_doubled(both[0]) == rounds
    assert both[0].ask("positions")["refs"] == ["cdc_head", "main"]


def test_two_writers_may_create_a_namespace_at_once(both: list[WriterProcess], namespace: str) -> None:
    for number in range(20):
        begin = time.time() + 0.05
        for writer in both:
            writer.send("create_namespace", f"{namespace}_{number}", begin)
        assert [writer.answer() for writer in both] == [{}, {}]


def test_two_writers_may_use_a_new_catalog_at_once(both: list[WriterProcess], namespace: str) -> None:
    for number in range(30):
        begin = time.time() + 0.05
        for writer, own in zip(both, ("a", "b"), strict=True):
            writer.send("create_catalog", f"{namespace}_{number}", own, begin)
        assert [writer.answer() for writer in both] == [{}, {}]


def test_of_two_racing_writers_one_commits_and_the_other_gets_commit_conflict(
    both: list[WriterProcess],
) -> None:
    race(both, rounds=8)


@pytest.mark.long
def test_fifty_races_have_one_winner_each(both: list[WriterProcess]) -> None:
    race(both, rounds=50)


def test_writers_and_maintenance_at_the_same_time_lose_nothing(both: list[WriterProcess]) -> None:
    writer, keeper = both
    for _ in range(4):
        keeper.send("maintain")
        for _ in range(3):
            assert "batch" in writer.ask("append")
        assert keeper.answer() == {}
    assert check_nothing_lost_or_doubled(writer) == 12


STAGES = ["after _write", "before _fast_forward", "after _fast_forward"]


@pytest.mark.covers("CAS-FAULT-03", "CAS-FAULT-05", "CAS-GAP-01", "MDB-XD-35")
def test_a_writer_killed_at_any_stage_of_a_commit_loses_and_doubles_nothing(
    folder: Path, namespace: str
) -> None:
    batches = 0
    for stage in STAGES:
        with WriterProcess(folder, "jdbc") as writer:
            writer.ask("use", namespace)
            assert writer.ask("append") == {"batch": batches + 1}
            writer.send("append_and_die", stage)
            assert writer.answer() is None
        batches += 2 if stage == "after _fast_forward" else 1
    with WriterProcess(folder, "jdbc") as writer:
        writer.ask("use", namespace)
        assert check_nothing_lost_or_doubled(writer) == batches
        writer.ask("append")
        assert check_nothing_lost_or_doubled(writer) == batches + 1
        left = [name for name in writer.ask("positions")["refs"] if name not in {"cdc_head", "main"}]
        assert len(left) == 2  # as many as were killed before they published: maintenance removes them


@pytest.mark.long
def test_a_writer_killed_at_random_moments_loses_and_doubles_nothing(
    folder: Path, catalog: str, namespace: str
) -> None:
    moments = random.Random(0)
    for _ in range(12):
        with WriterProcess(folder, catalog) as writer:
            writer.ask("use", namespace)
            check_nothing_lost_or_doubled(writer)
            writer.send("append_for_ever")
            for _ in range(moments.randrange(1, 5)):
                writer.answer()
            time.sleep(moments.uniform(0, 0.4))
    with WriterProcess(folder, catalog) as writer:
        writer.ask("use", namespace)
        assert check_nothing_lost_or_doubled(writer) > 12
