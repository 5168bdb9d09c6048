"""What ends a requested snapshot that can't be taken, so that it stops neither runs nor the next requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from airflow_cdc_provider.changes import worker
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import (
    CdcError,
    CommitConflict,
    ConfigurationError,
    CorruptInput,
    PositionLost,
    TransientError,
)
from airflow_cdc_provider.jobs import signals
from airflow_cdc_provider.jobs.context.run_report import SignalsMemory
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SignalState, SnapshotRequest, received
from airflow_cdc_provider.jobs.snapshots import incremental
from airflow_cdc_provider.jobs.snapshots.snapshot import due_tables
from airflow_cdc_provider.jobs.spark.failures import as_error
from airflow_cdc_provider.jobs.spark.read import _Read
from airflow_cdc_provider.jobs.spec import SnapshotResult
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.signals.signal import Signal
from airflow_cdc_provider.sources.contract import Reader
from tests.unit.jobs.runs import FakeSource, run_of

CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
BEFORE = SnapshotProgress(True, "0a", "feed", started_us=7)
UNFINISHED = SnapshotProgress(False, "0b", "feed", ranges=({"where": "wrong"},), started_us=9)


@dataclass
class Changes:
    """A changes table that keeps the newest offset."""

    offset: Mapping[str, Any]
    batch: int = 3

    def state(self) -> ChangesState:
        return ChangesState(cast(Any, None), self.batch, self.offset)

    def set_offset(self, offset: Mapping[str, Any], state: ChangesState) -> ChangesState:
        self.offset = offset
        return self.state()


def asked(identity: str, kind: str, *tables: str) -> Signal:
    return Signal(identity, "execute-snapshot", {"data-collections": list(tables), "type": kind}, "file")


@dataclass
class Requests:
    """A run with requests, the first of which fails as given, or succeeds."""

    monkeypatch: pytest.MonkeyPatch
    kind: str
    changes: Changes = field(init=False)

    def __post_init__(self) -> None:
        requests = [asked("wrong", self.kind, "s.a", "s.b"), asked("next", self.kind, "s.a")]
        state = received(SignalState(), requests, ["s.a", "s.b"], 5, lambda where: "").state
        self.changes = Changes(Progress({"at": 1}, {"s.a": BEFORE}, state).to_offset())
        self.run = run_of(CONNECTOR, changes=self.changes, source=FakeSource("s.a", "s.b"))

    @property
    def progress(self) -> Progress:
        return Progress.from_offset(self.changes.offset)

    def outcome(self, identity: str) -> str:
        return next(r.outcome for r in self.progress.signals.records if r.id == identity)

    def fail(self, error: BaseException, *, batches: int = 0) -> None:
        """Take the next step of the first request, which fails after some commits."""

        def failing(*_: Any) -> None:
            progress = self.progress.with_snapshot("s.a", UNFINISHED).with_snapshot("s.b", UNFINISHED)
            self.changes.offset, self.changes.batch = progress.to_offset(), self.changes.batch + batches
            raise error

        job, stores, source, clients, report = self.run
        vars(report)["signals"] = SignalsMemory()  # each run is a process
        self.monkeypatch.setattr(signals, "_copy_tables", failing)
        self.monkeypatch.setattr(incremental, "_next_step", failing)
        if self.kind == "blocking":
            request = cast(SnapshotRequest, self.progress.signals.blocking)
            signals.take_blocking(job, stores, source, clients, report, request)
        else:
            request = cast(SnapshotRequest, self.progress.signals.incremental)
            state = self.changes.state()
            incremental.copy_chunks(CONNECTOR, stores, source, clients, report, request, self.progress, state)


@pytest.fixture(params=["incremental", "blocking"])
def requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch, request.param)


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("a filter"),
        CdcError("unknown"),
        PositionLost("it quotes a filter: purged"),
        CorruptInput("a page"),
        KeyError("unknown"),
    ],
)
def test_an_error_that_no_retry_resolves_ends_the_request_and_the_next_one_goes_on(
    requests: Requests, error: Exception
) -> None:
    requests.fail(error)
    assert (requests.outcome("wrong"), requests.outcome("next")) == ("failed", "queued")
    assert [one.id for one in requests.progress.signals.requests] == ["next"]


def test_three_transient_errors_in_a_row_end_a_request(requests: Requests) -> None:
    for _ in range(2):
        with pytest.raises(TransientError):
            requests.fail(TransientError("got no response"))
        assert requests.progress.signals.requests[0].id == "wrong"
    requests.fail(TransientError("got no response"))
    assert (requests.outcome("wrong"), requests.outcome("next")) == ("failed", "queued")


def test_a_blocking_request_that_reads_something_each_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch, "blocking")
    for _ in range(5):
        with pytest.raises(TransientError):
            requests.fail(TransientError("got no response"), batches=1)
    assert requests.progress.signals.requests[0].failures == 1


@pytest.mark.parametrize(
    "error", [CommitConflict("another writer"), RuntimeError("java.net.ConnectException: Connection refused")]
)
def test_failures_that_are_not_the_requests_own_never_end_it(requests: Requests, error: Exception) -> None:
    for _ in range(5):
        with pytest.raises(type(error)):
            requests.fail(error)
    assert requests.progress.signals.requests[0].failures == 0


class Killed(BaseException):
    """What nothing catches: the process is gone."""


def test_a_request_that_ends_the_process_is_ended_before_its_fourth_attempt(requests: Requests) -> None:
    for _ in range(3):
        with pytest.raises(Killed):
            requests.fail(Killed())
        assert requests.progress.signals.requests[0].id == "wrong"
    requests.fail(Killed())
    assert (requests.outcome("wrong"), requests.outcome("next")) == ("failed", "queued")
    assert "memory" in requests.progress.signals.records[0].detail
    assert requests.progress.snapshots["s.a"] == (UNFINISHED if requests.kind == "incremental" else BEFORE)


def test_a_request_that_reads_something_before_each_kill_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch, "blocking")
    for committed in range(5):
        read = replace(UNFINISHED, committed=committed)
        monkeypatch.setattr(f"{__name__}.UNFINISHED", read)
        with pytest.raises(Killed):
            requests.fail(Killed())
    assert requests.progress.signals.requests[0].failures == 1


def test_what_a_blocking_request_began_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch, "blocking")
    job, stores, source, _, _ = requests.run
    assert due_tables(job, stores, source, requests.progress) == ["s.b"]
    with pytest.raises(Killed):
        requests.fail(Killed())
    assert due_tables(job, stores, source, requests.progress) == []
    assert due_tables(job, stores, source, requests.progress.with_loss(["s.a"], 11, "a gap")) == ["s.a"]
    requests.fail(ConfigurationError("a filter"))
    assert due_tables(job, stores, source, requests.progress) == ["s.b"], "as before the request"


def test_the_tables_of_a_failed_blocking_request_are_as_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch, "blocking")
    with pytest.raises(TransientError):
        requests.fail(TransientError("got no response"), batches=1)
    assert not requests.progress.snapshots["s.a"].done
    lost = requests.progress.with_loss(["s.a"], 11, "a gap")
    requests.changes.offset = lost.to_offset()
    requests.fail(ConfigurationError("a filter"))
    found = requests.progress.snapshots
    assert set(found) == {"s.a"}, "one that was never read is due again, without the request's ranges"
    assert (found["s.a"].ranges, found["s.a"].done, found["s.a"].started_us) == ((), True, 7)


@pytest.mark.parametrize("tables", [None, ["s.a"]])
def test_a_blocking_request_can_be_stopped_between_runs(
    monkeypatch: pytest.MonkeyPatch, tables: list[str] | None
) -> None:
    requests = Requests(monkeypatch, "blocking")
    with pytest.raises(TransientError):
        requests.fail(TransientError("got no response"), batches=1)
    data: dict[str, Any] = {"type": "blocking"} | ({"data-collections": tables} if tables else {})
    stopping = received(
        requests.progress.signals, [Signal("x", "stop-snapshot", data, "file")], [], 5, lambda where: ""
    ).state
    found = signals._without_stopped(requests.progress, stopping)
    assert found.snapshots["s.a"] == BEFORE
    assert ("s.b" in found.snapshots) is bool(tables)
    left = [(one.id, [copy.table for copy in one.tables]) for one in stopping.requests]
    assert left == ([("wrong", ["s.b"])] if tables else [])


@dataclass(frozen=True)
class Quoting(Reader):
    """A reader whose errors quote a filter."""

    where: str

    def read(self, parts: Any, metrics: Any) -> Any:
        raise KeyError(self.where)
        yield


@pytest.mark.parametrize(
    "where", ["'Connection refused' = 1", "a = 'No space left on device'", "a = '[CDC-TRANSIENT] x'"]
)
def test_the_class_of_a_readers_error_is_not_searched_in_a_text_that_quotes_a_filter(where: str) -> None:
    task = worker._Task(_Read(Quoting(where), None, []), [], worker._TOKEN)
    with pytest.raises(worker.WorkerError) as raised:
        list(task(iter(())))
    text = f"Job aborted due to stage failure\n  worker.WorkerError: {raised.value}\nmore"
    found = as_error(RuntimeError(text))
    assert type(found) is CdcError
    assert where[:10] in str(found)


def test_tables_of_which_one_can_never_be_read_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch, "blocking")
    texts = {"s.a": str(TransientError("away")), "s.b": str(CdcError("broken"))}
    shot = SnapshotResult(tables=2, errors=texts, aborted=True)
    monkeypatch.setattr(signals, "_copy_tables", lambda *_: shot)
    job, stores, source, clients, report = requests.run
    request = cast(SnapshotRequest, requests.progress.signals.blocking)
    assert signals.take_blocking(job, stores, source, clients, report, request) is None
    assert requests.outcome("wrong") == "failed"
