from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import grpc
import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition, copy_key
from airflow_cdc_provider.sources.vitess.protocol import RowChange
from airflow_cdc_provider.sources.vitess.snapshot import RangeReader, plan_snapshot
from tests.unit.sources.vitess.fake_vtgate import (
    Fails,
    FakeVtgate,
    Script,
    Step,
    Waits,
    event,
    fields,
    gtid,
    response,
    row,
    rows,
    transaction,
    vgtid,
)

STORED = Position({"shop/-80": ShardPosition(gtid(10), 1), "shop/80-": ShardPosition(gtid(20), 3)})


def copied(last: int, *keys: int) -> Any:
    """A VGTID inside a copy: position, and the last key if there is one."""
    message = vgtid({"-80": last})
    for key in keys:
        one = message.shard_gtids[0].table_p_ks.add(table_name="item")
        one.lastpk.fields.add(name="id", type=265)
        one.lastpk.rows.append(row([str(key)]))
    return message


def packet(last: int, *keys: int, first: bool = False) -> bytes:
    """A packet of a copy up to its last key; the events of a copy have no time."""
    packet_rows = [rows("item", "-80", (None, [str(key), "x"])) for key in keys]
    for one in packet_rows:
        one.timestamp = 0
    head = [fields("item", "-80"), event("VGTID", "-80", vgtid=vgtid({"-80": last}))] if first else []
    return response(
        event("BEGIN", "-80"),
        *head,
        *packet_rows,
        event("VGTID", "-80", vgtid=copied(last, keys[-1])),
        event("COMMIT", "-80"),
    )


def caught_up(last: int, key: int) -> bytes:
    """A transaction of the binlog in the middle of a copy."""
    (begin, inside, _, commit) = transaction("-80", {"-80": last}, rows("item", "-80", (None, ["1", "y"])))
    return response(begin, inside, event("VGTID", "-80", vgtid=copied(last, key)), commit)


ENDED = response(
    event("BEGIN", "-80"),
    event("VGTID", "-80", vgtid=vgtid({"-80": 13})),
    event("COMMIT", "-80"),
    event("COPY_COMPLETED", "-80"),
    event("COPY_COMPLETED"),
)


class Copy:
    """A range of a fake VTGate that is read."""

    def __init__(self, stack: ExitStack, *scripts: Script, where: str | None = None) -> None:
        self.server = stack.enter_context(FakeVtgate(scripts))
        self.pauses: list[float] = []
        self.metrics = ReadMetrics()
        advanced = VitessAdvanced(connect_attempts=2, connect_backoff_seconds=0.01)
        options = VitessOptions(keyspace="shop", advanced=advanced)
        values = ConnectionValues.read(self.server.connection)
        self.reader = RangeReader(values, options, self.pauses.append)
        self.part = plan_snapshot(STORED, "shop.item", where).ranges[0]

    def read(self) -> list[dict[str, Any]]:
        table = pa.Table.from_batches(list(self.reader.read([self.part], self.metrics)), schema=CHANGE_SCHEMA)
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def keys(self) -> list[str]:
        return [values(r) for r in self.read() if r["kind"] == SNAPSHOT]


def values(record: dict[str, Any]) -> str:
    text: str = RowChange.FromString(record["payload"]).after.values.decode()
    return text


@pytest.fixture
def stack() -> Any:
    with ExitStack() as one:
        yield one


@pytest.mark.covers("VIT-SNP-06")
def test_a_copy_gives_its_rows_and_leaves_transactions_to_the_main_stream(stack: ExitStack) -> None:
    script: list[Step] = [packet(11, 1, 2, first=True), caught_up(12, 2), packet(12, 3), ENDED, Waits()]
    copy = Copy(stack, script)

    records = copy.read()

    reported = [r for r in records if r["kind"] == SCHEMA]
    copies = [r for r in records if r["kind"] == SNAPSHOT]
    assert [values(r) for r in copies] == ["1x", "2x", "3x"]
    assert len(reported) == 1
    assert {r["schema_id"] for r in copies} == {reported[0]["schema_id"]}
    versions = [f"00000001{count:016x}ffffffff" for count in (11, 11, 12)]
    assert [r["version"][:16].hex() for r in copies] == versions
    assert all(r["version"] == r["position"] for r in copies)
    assert len({r["position"] for r in copies}) == 3
    (request,) = copy.server.requests
    assert [s.gtid for s in request.vgtid.shard_gtids] == [""]
    assert list(request.flags.tables_to_copy) == ["item"]
    assert [(r.match, r.filter) for r in request.filter.rules] == [("item", "select * from `item`")]


@pytest.mark.covers("VIT-SNP-04")
def test_a_lost_copy_resumes_after_its_last_key(stack: ExitStack) -> None:
    lost: list[Step] = [packet(11, 1, 2, first=True), Fails(grpc.StatusCode.UNAVAILABLE, "gone")]
    again: list[Step] = [response(fields("item", "-80")), packet(12, 3), ENDED, Waits()]
    copy = Copy(stack, lost, again)

    assert copy.keys() == ["1x", "2x", "3x"]
    (entry,) = copy.server.requests[1].vgtid.shard_gtids
    assert entry.gtid == gtid(11)
    assert entry.table_p_ks[0].lastpk.rows[0].values == b"2"
    assert entry.table_p_ks[0].lastpk.fields[0].name == "id"
    assert list(copy.server.requests[1].flags.tables_to_copy) == ["item"]
    assert copy.metrics.counts["disconnects"] == 1


def test_a_copy_of_a_tablet_behind_the_offset_is_restarted(stack: ExitStack) -> None:
    behind: list[Step] = [packet(9, 1, first=True), ENDED, Waits()]
    good: list[Step] = [packet(10, 1, 2, first=True), ENDED, Waits()]
    copy = Copy(stack, behind, good)

    assert copy.keys() == ["1x", "2x"]
    assert len(copy.pauses) == 1


def test_a_tablet_that_remains_behind_is_reported(stack: ExitStack) -> None:
    copy = Copy(stack, [packet(9, 1, first=True), ENDED, Waits()])

    with pytest.raises(TransientError, match="behind the stored offset"):
        copy.read()


def test_packets_that_end_with_equal_rows_are_both_taken(stack: ExitStack) -> None:
    script: list[Step] = [packet(11, 5, 5, first=True), packet(11, 5, 5), ENDED, Waits()]

    assert Copy(stack, script).keys() == ["5x"] * 4


def test_an_empty_table_has_its_fields(stack: ExitStack) -> None:
    script: list[Step] = [response(event("BEGIN", "-80"), fields("item", "-80")), ENDED, Waits()]

    records = Copy(stack, script).read()

    assert [r["kind"] for r in records] == [SCHEMA]


def test_a_copy_ends_with_its_table_without_a_completion_event(stack: ExitStack) -> None:
    whole = [packet(11, 1, first=True)]
    end = response(
        event("BEGIN", "-80"), event("VGTID", "-80", vgtid=vgtid({"-80": 13})), event("COMMIT", "-80")
    )
    script: list[Step] = [*whole, end, Waits()]

    assert Copy(stack, script).keys() == ["1x"]


def test_a_filter_is_sent_to_the_server(stack: ExitStack) -> None:
    copy = Copy(stack, [packet(11, 1, first=True), ENDED, Waits()], where="name = 'x'")
    copy.read()

    (rule,) = copy.server.requests[0].filter.rules
    assert rule.filter == "select * from `item` where name = 'x'"


def test_a_plan_has_a_range_and_a_fence_for_each_shard() -> None:
    plan = plan_snapshot(STORED, "shop.item", None)

    assert [(r.shard, r.epoch, r.gtid) for r in plan.ranges] == [("-80", 1, gtid(10)), ("80-", 3, gtid(20))]
    fences = {plan.origin: plan.position, **plan.other_positions}
    (planned_us,) = {part.planned_us for part in plan.ranges}
    assert {shard: fence.hex() for shard, fence in fences.items()} == {
        "shop/-80": f"00000001{10:016x}ffffffff{planned_us:016x}",
        "shop/80-": f"00000003{20:016x}ffffffff{planned_us:016x}",
    }
    with pytest.raises(ConfigurationError, match="no shard of lookup"):
        plan_snapshot(STORED, "lookup.plain", None)


def test_a_reference_table_is_read_from_one_shard_and_fenced_in_all() -> None:
    plan = plan_snapshot(STORED, "shop.item", None, is_reference=True)

    assert [part.shard for part in plan.ranges] == ["-80"]
    assert {plan.origin, *plan.other_positions} == {"shop/-80", "shop/80-"}


def test_a_plan_fences_shards_that_were_resharded_too() -> None:
    parents = ("shop/-80", "shop/0")
    children = {
        "shop/-40": ShardPosition(gtid(7), 4, parents),
        "shop/40-80": ShardPosition(gtid(900), 6, parents),
    }
    plan = plan_snapshot(Position({**children, "shop/80-": ShardPosition(gtid(20), 3)}), "shop.item", None)

    fences = {plan.origin: plan.position, **plan.other_positions}
    assert [r.shard for r in plan.ranges] == ["-40", "40-80", "80-"]
    assert set(fences) == {*children, "shop/80-", *parents}
    for parent in parents:
        assert fences[parent] > ShardPosition(gtid(10**9), 3).key + b"\xff" * 16, (
            "behind all that it reported"
        )
        assert fences[parent] < ShardPosition(gtid(1), 4).key, (
            "before all that its children reported: they inherit it"
        )


def test_a_shard_that_was_split_and_merged_again_is_fenced_at_its_position() -> None:
    merged = {"shop/-80": ShardPosition(gtid(9), 5, ("shop/-40", "shop/40-80", "shop/-80"))}
    plan = plan_snapshot(Position(merged), "shop.item", None)

    assert plan.position == copy_key(merged["shop/-80"].key, plan.ranges[0].planned_us)
    assert set(plan.other_positions) == {"shop/-40", "shop/40-80"}


@pytest.mark.covers("VIT-SNP-05")
def test_only_the_end_of_all_shards_ends_a_copy(stack: ExitStack) -> None:
    own, last = response(event("COPY_COMPLETED", "-80")), response(event("COPY_COMPLETED"))
    # Were the shard's own end taken for the copy's, what follows it would be left out.
    script: list[Step] = [packet(11, 1, first=True), own, packet(14, 2), last, Waits()]

    assert Copy(stack, script).keys() == ["1x", "2x"]


def test_a_copy_without_the_end_of_all_shards_isnt_over(stack: ExitStack) -> None:
    cut = Fails(grpc.StatusCode.UNAVAILABLE, "gone")
    first: list[Step] = [packet(11, 1, first=True), response(event("COPY_COMPLETED", "-80")), cut]
    copy = Copy(stack, first, [packet(12, 2), ENDED, Waits()])

    assert copy.keys() == ["1x", "2x"]
    assert copy.metrics.counts["disconnects"] == 1
