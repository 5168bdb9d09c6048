"""How a task reads its streams: requests in flight, attempts, changes that aren't whole, changed columns."""

from __future__ import annotations

import pickle
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel, OperationTimedOut, ReadTimeout

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import CorruptInput, TransientError
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.scylla.capture import GroupRead, LogPart
from airflow_cdc_provider.sources.scylla.quarantine import QuarantineReader, payload_rows
from airflow_cdc_provider.sources.scylla.reader import LogReader, LogReads
from airflow_cdc_provider.sources.scylla.schema_history import schema_columns
from airflow_cdc_provider.sources.scylla.stream_ids import first_time
from airflow_cdc_provider.sources.scylla.throttle import RetryPauses
from tests.unit.sources.scylla.fake_session import FakeSession, Rows
from tests.unit.sources.scylla.small_log import TABLE

BEGIN_US, END_US = 1_000_000, 2_000_000


LOG_COLUMNS = [name for name, _ in TABLE.columns if not name.startswith("ttl(")]


def stream_id(number: int) -> bytes:
    return number.to_bytes(8, "big") + (number << 4 | 1).to_bytes(8, "big")


def rows_of(number: int, changes: int, *, size: int = 2, code: int = 1, lacks_end_of: int = -1) -> Rows:
    found = []
    for change in range(changes):
        time = first_time(BEGIN_US + change)
        for seq in range(size):
            last = seq == size - 1 and change != lacks_end_of
            own: dict[str, bytes] = {
                "cdc$stream_id": stream_id(number),
                "cdc$time": time,
                "cdc$batch_seq_no": struct.pack(">i", seq),
                "cdc$operation": struct.pack(">b", code),
                "k": struct.pack(">i", number),
                **({"cdc$end_of_batch": b"\1"} if last else {}),
            }
            values = [own.get(name) for name, _ in TABLE.columns]
            row = b"".join(
                struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values
            )
            found.append((time, row))
    return found


def reader(session: FakeSession, *, fetch_size: int = 0, retries: int = 3) -> LogReader:
    pauses = RetryPauses(retries, 0.0, 0.0, 0.0)
    reads = LogReads("QUORUM", fetch_size, 1.0, 10.0, pauses)
    return LogReader({}, reads, {"s.t": TABLE}, lambda connection, timeout: session)


def part(streams: int, requests: int = 8) -> LogPart:
    ids = tuple(stream_id(number) for number in range(streams))
    return LogPart((GroupRead("s.t", "0", 7, BEGIN_US, END_US, ids),), requests)


def read(session: FakeSession, streams: int, **how: Any) -> tuple[list[dict[str, Any]], Counter[str]]:
    requests = how.pop("requests", 8)
    metrics = ReadMetrics()
    batches = list(reader(session, **how).read([part(streams, requests)], metrics))
    return pa.Table.from_batches(batches, CHANGE_SCHEMA).to_pylist(), metrics.counts


def levels_of(session: FakeSession) -> Iterator[str]:
    return (level for _, _, level in session.requests)


@pytest.mark.covers("SCY-WIN-05")
@pytest.mark.parametrize("fetch_size", [0, 1, 3, 1000])
def test_records_are_whole_changes_whatever_the_page_size(fetch_size: int) -> None:
    streams = {stream_id(n): rows_of(n, 5) for n in range(4)}
    session = FakeSession(streams, LOG_COLUMNS)
    records, counts = read(session, 4, fetch_size=fetch_size)
    assert len(records) == counts["events"] == 20
    assert {size for _, size, _ in session.requests} == {fetch_size or session.default_fetch_size}
    for record in records:
        stream = record["position"][24:]
        assert record["position"][:8] == (7).to_bytes(8, "big")
        assert (record["source_table"], record["origin"], record["kind"]) == ("s.t", "s.t/0", "change")
        assert record["schema_id"] == TABLE.schema_id
        moment = record["committed_at"].microsecond
        rows = [row for time, row in streams[stream] if time == first_time(BEGIN_US + moment)]
        assert list(payload_rows(record["payload"])) == rows
    assert len({record["position"] for record in records}) == 20


@pytest.mark.covers("SCY-CFG-07")
def test_requests_in_flight_stay_within_the_tasks_share() -> None:
    session = FakeSession({}, LOG_COLUMNS)
    records, counts = read(session, 100, requests=8)
    assert not records
    assert session.most_in_flight == 8
    assert counts["requests"] == len(session.requests) == 100
    assert session.shut_down
    assert set(levels_of(session)) == {"QUORUM"}


def test_requests_to_an_overloaded_cluster_are_retried_with_smaller_pages_and_fewer_in_flight() -> None:
    streams = {stream_id(n): rows_of(n, 3) for n in range(50)}
    overload = ReadTimeout("busy", consistency=ConsistencyLevel.QUORUM)
    session = FakeSession(streams, LOG_COLUMNS, fails=lambda n: overload if n in (1, 9, 10) else None)
    records, counts = read(session, 50, fetch_size=400)
    assert len(records) == 150
    assert counts["retries"] == 3
    assert min(size for _, size, _ in session.requests) == 50


def test_a_cluster_that_stays_too_busy_ends_the_task_with_what_to_do() -> None:
    session = FakeSession({}, LOG_COLUMNS, fails=lambda n: OperationTimedOut())
    with pytest.raises(TransientError, match=r"reading the log of s\.t got no response"):
        read(session, 1, retries=3)
    assert len(session.requests) == 4
    assert session.shut_down


@pytest.mark.covers("SCY-LOG-16")
def test_a_change_that_is_not_whole_is_read_from_all_replicas() -> None:
    streams = {stream_id(0): rows_of(0, 3, lacks_end_of=1), stream_id(1): rows_of(1, 2)}
    session = FakeSession(streams, LOG_COLUMNS, complete={stream_id(0): rows_of(0, 3)})
    records, _ = read(session, 2)
    assert len(records) == 5
    first = [r for r in records if r["position"][24:] == stream_id(0)]
    assert [list(payload_rows(r["payload"])) for r in first] == [
        [row for time, row in rows_of(0, 3) if time == first_time(BEGIN_US + n)] for n in range(3)
    ]
    assert Counter(levels_of(session)) == {"QUORUM": 2, "ALL": 1}


def test_a_change_that_is_incomplete_on_all_replicas_is_never_applied() -> None:
    session = FakeSession({stream_id(0): rows_of(0, 3, lacks_end_of=2)}, LOG_COLUMNS)
    with pytest.raises(CorruptInput, match=rf"a change of s\.t is incomplete.*0x{stream_id(0).hex()}"):
        read(session, 1)
    session = FakeSession({stream_id(0): rows_of(0, 1, lacks_end_of=0)}, LOG_COLUMNS, complete={})
    with pytest.raises(TransientError, match="expired while it was read"):
        read(session, 1)


def test_a_log_with_a_new_column_is_not_read_with_the_old_schema() -> None:
    with pytest.raises(TransientError, match=r"columns of the log .* have changed.*found w"):
        read(FakeSession({}, [*LOG_COLUMNS, "w"]), 1)
    with pytest.raises(TransientError, match=r"columns of the log .* have changed.*expected v"):
        read(FakeSession({}, [name for name in LOG_COLUMNS if name != "v"]), 1)


@pytest.mark.covers("SCY-LOG-15")
def test_a_change_with_an_unknown_code_is_quarantined_until_it_is_known() -> None:
    session = FakeSession({stream_id(0): rows_of(0, 1, code=42)}, LOG_COLUMNS)
    (record,), _ = read(session, 1)
    assert record["kind"] == "quarantine"
    reason = (
        f"unknown-operation: cdc$operation 42 in the log of s.t, stream 0x{stream_id(0).hex()}, cdc$time "
    )
    assert record["reason"].startswith(reason)
    again = QuarantineReader(schema_columns({TABLE.schema_id: TABLE.payload}))
    batch = pa.RecordBatch.from_pylist([record], CHANGE_SCHEMA)
    assert [b.to_pylist() for b in again(batch)] == [[record]]
    payload = record["payload"].replace(struct.pack(">ib", 1, 42), struct.pack(">ib", 1, 3))
    batch = pa.RecordBatch.from_pylist([record | {"payload": payload}], CHANGE_SCHEMA)
    (landed,) = next(iter(again(batch))).to_pylist()
    assert (landed["kind"], landed["schema_id"]) == ("change", TABLE.schema_id)
    assert len(list(payload_rows(landed["payload"]))) == 2


def test_a_reader_can_be_sent_to_executors_and_hides_the_connection() -> None:
    sent = LogReader({"password": "secret-word"}, reader(FakeSession({}, [])).reads, {"s.t": TABLE})
    assert "secret-word" not in repr(sent)
    assert pickle.loads(pickle.dumps(sent)) == sent
