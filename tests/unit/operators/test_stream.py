"""There is one continuous application per connector: started once, adopted, watched, stopped when asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.operators.stream import CdcStreamOperator
from airflow_cdc_provider.tasks.stream_application import StreamFolder
from airflow_cdc_provider.triggers.stream import StreamHealthTrigger
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, PASSWORD, FakeSpark

APPLICATION = """
import signal, socket
path = pathlib.Path(spec["options"]["state_path"])
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
began = time.time()
def write_state(status):
    state = {"pid": os.getpid(), "host": socket.gethostname(), "name": "shop", "started_at": began,
             "heartbeat_at": time.time(), "rounds": 1, "batch": 3, "changes": 9, "lag_seconds": 2.0,
             "status": status, "error": ""}
    path.with_name("part").write_text(json.dumps(state))
    path.with_name("part").replace(path)
while not stopping and time.time() - began < spec["options"]["max_runtime_seconds"]:
    write_state("running")
    time.sleep(0.05)
write_state("stopped")
"""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, or is a zombie."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def await_end(pid: int) -> None:
    """Wait until the system has ended a process that was killed."""
    deadline = time.monotonic() + 5
    while not has_ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stream(**arguments: Any) -> CdcStreamOperator:
    arguments = {"wait": False, "poll_seconds": 0.1, "start_timeout_seconds": 20, **arguments}
    return CdcStreamOperator(task_id="stream", connector=DECLARATION, **arguments)


@pytest.fixture
def folder(spark_submit: FakeSpark, work_folder: Path) -> Iterator[StreamFolder]:
    """The application's folder; whatever still runs there at the end is stopped."""
    spark_submit.behaves(APPLICATION)
    found = StreamFolder(work_folder / "shop" / "stream")
    yield found
    found.request_stop()


def test_a_table_that_requires_manual_action_is_reported_while_the_application_runs(
    folder: StreamFolder, spark_submit: FakeSpark
) -> None:
    why = "[CDC-CONFIGURATION] 1 of 2 tables could not be merged: shop.bad: a column _cdc_x"
    spark_submit.behaves(APPLICATION.replace('"error": ""', f'"error": "{why}"'))
    with pytest.raises(AirflowFailException, match=r"shop\.bad: a column _cdc_x"):
        stream(wait=True).execute(TaskContext())
    assert folder.health(900).status == "running", "the other tables follow"


def test_an_application_is_started_once_and_then_adopted(
    folder: StreamFolder, spark_submit: FakeSpark
) -> None:
    first = stream().execute(TaskContext())
    second = stream().execute(TaskContext(run_id="scheduled__2"))
    assert (first["adopted"], second["adopted"]) == (False, True)
    assert first["pid"] == second["pid"]
    assert second["status"] == "running"
    assert "--name" in spark_submit.seen["arguments"]
    assert "cdc-stream-shop" in spark_submit.seen["arguments"]


def test_two_tasks_at_once_start_one_application(folder: StreamFolder) -> None:
    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: found.append(stream().execute(TaskContext()))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["adopted"] for one in found) == [False, True]
    assert len({one["pid"] for one in found}) == 1


def test_its_connection_goes_once_it_has_sent_a_heartbeat(
    folder: StreamFolder, spark_submit: FakeSpark
) -> None:
    stream().execute(TaskContext())
    assert spark_submit.seen["connection"]["password"] == PASSWORD
    assert not (folder.path / "connection.json").exists()
    assert folder.log_path.stat().st_mode & 0o077 == 0


def test_another_declaration_stops_it_and_restarts_it(folder: StreamFolder) -> None:
    first = stream().execute(TaskContext())
    second = stream(commit_interval_seconds=5).execute(TaskContext())
    assert second["adopted"] is False
    assert second["pid"] != first["pid"]
    assert has_ended(first["pid"])


def test_after_a_kill_the_next_run_starts_a_new_one(folder: StreamFolder) -> None:
    first = stream().execute(TaskContext())
    os.kill(first["pid"], signal.SIGKILL)
    time.sleep(0.2)
    failure = folder.failure(folder.health(900))
    assert failure is not None
    assert "is dead" in str(failure)
    assert stream().execute(TaskContext())["adopted"] is False


def test_waiting_ends_when_the_application_ends_well(folder: StreamFolder) -> None:
    assert stream(wait=True, max_runtime_seconds=1.0).execute(TaskContext())["status"] == "stopped"


def test_waiting_deferred_is_resumed_by_the_triggers_event(folder: StreamFolder) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        stream(wait=True, deferrable=True, max_runtime_seconds=1.0).execute(TaskContext())
    path, arguments = deferred.value.trigger.serialize()
    assert path.endswith("StreamHealthTrigger")
    trigger = StreamHealthTrigger(**json.loads(json.dumps(arguments)))

    async def first_event() -> Any:
        return await asyncio.wait_for(anext(aiter(trigger.run())), 10)

    event = asyncio.run(first_event()).payload
    value = stream(deferrable=True).execute_complete(TaskContext(), event, **(deferred.value.kwargs or {}))
    assert (value["status"], value["adopted"]) == ("stopped", False)


def test_a_killed_application_fails_the_waiting_task(folder: StreamFolder) -> None:
    operator = stream(wait=True)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            operator.execute(TaskContext())
        except CdcError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 20
    while folder.health(900).status != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(folder.health(900).state["pid"], signal.SIGKILL)
    thread.join(20)
    assert "is dead" in str(failures[0])


@pytest.mark.parametrize("asked", [False, True])
def test_killing_the_task_stops_the_application_only_if_asked(folder: StreamFolder, asked: bool) -> None:
    operator = stream(stop_on_kill=asked)
    operator.execute(TaskContext())
    operator.on_kill()
    time.sleep(0.5)
    assert folder.health(900).status == ("stopped" if asked else "running")


@pytest.mark.parametrize("asked", [False, True])
def test_killing_the_deferred_task_stops_the_application_only_if_asked(
    folder: StreamFolder, asked: bool
) -> None:
    stream().execute(TaskContext())
    trigger = StreamHealthTrigger(
        folder=str(folder.path), heartbeat_timeout_seconds=900, stop_on_kill=asked, poll_seconds=1
    )
    asyncio.run(trigger.on_kill())
    time.sleep(0.5)
    assert folder.health(900).status == ("stopped" if asked else "running")


SLOW = "print('slow', flush=True); time.sleep(60)\n"


class TaskEnded(BaseException):
    """As Airflow's timeout of a task, which is raised by a signal."""


@pytest.mark.parametrize("by", ["flag", "timeout"])
def test_a_task_that_is_killed_during_the_start_kills_the_application(
    folder: StreamFolder, spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    spark_submit.behaves(SLOW + APPLICATION)
    operator = stream()

    def end(seconds: float) -> None:
        if not spark_submit.started:
            return time_passes(seconds)
        operator.on_kill()
        if by == "timeout":
            raise TaskEnded
        return None

    time_passes = time.sleep
    monkeypatch.setattr("airflow_cdc_provider.operators.stream.time.sleep", end)
    with pytest.raises((TransientError, TaskEnded)) as ended:
        operator.execute(TaskContext())
    monkeypatch.undo()
    if by == "flag":
        assert "the task was killed while the continuous application started" in str(ended.value)
    await_end(spark_submit.seen["pid"])
    assert not (folder.path / "connection.json").exists()


def test_what_a_lost_worker_was_starting_is_killed_by_the_next_run(
    folder: StreamFolder, spark_submit: FakeSpark, work_folder: Path
) -> None:
    spark_submit.behaves(SLOW + APPLICATION)
    task = os.fork()
    if not task:  # as a worker that nothing stops in time
        with contextlib.suppress(BaseException):
            stream().execute(TaskContext())
        os._exit(1)
    deadline = time.monotonic() + 20
    while not spark_submit.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(task, signal.SIGKILL)
    os.waitpid(task, 0)
    lost = spark_submit.seen["pid"]
    assert not has_ended(lost), "nobody has killed it"
    assert (folder.path / "connection.json").exists(), "it is able to live"

    spark_submit.behaves(APPLICATION)
    started = stream().execute(TaskContext(run_id="scheduled__2"))

    assert started["adopted"] is False
    assert started["pid"] != lost
    await_end(lost)
    assert not (folder.path / "connection.json").exists()


def test_an_application_whose_task_was_lost_during_the_start_is_adopted_once_it_runs(
    folder: StreamFolder, spark_submit: FakeSpark
) -> None:
    first = stream().execute(TaskContext())
    (folder.path / "connection.json").write_text("{}")  # the lost task did not remove it
    assert stream().execute(TaskContext(run_id="scheduled__2"))["pid"] == first["pid"]
    assert not (folder.path / "connection.json").exists()


def test_a_start_that_fails_reports_why(folder: StreamFolder, spark_submit: FakeSpark) -> None:
    spark_submit.answers(
        1, ok=False, error_code="CONFIGURATION", error="[CDC-CONFIGURATION] nothing declares lake"
    )
    with pytest.raises(AirflowFailException, match="nothing declares lake"):
        stream().execute(TaskContext())


@pytest.mark.covers("CAS-CFG-08")
def test_a_start_that_crashes_shows_the_log_without_secrets(
    folder: StreamFolder, spark_submit: FakeSpark
) -> None:
    spark_submit.behaves(f"print('no memory for {PASSWORD}', flush=True); sys.exit(1)")
    with pytest.raises(CdcError, match=r"no memory for \*\*\*"):
        stream().execute(TaskContext())


def test_a_foreign_process_with_its_number_is_not_taken_for_it(folder: StreamFolder) -> None:
    stream().execute(TaskContext())
    folder.request_stop()
    time.sleep(0.5)
    state = json.loads(folder.state_path.read_text())
    folder.state_path.write_text(json.dumps({**state, "pid": os.getpid(), "status": "running"}))
    assert folder.health(900).status == "dead"
