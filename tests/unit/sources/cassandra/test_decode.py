"""Decoding of updates and snapshot rows, against a writer by the reference."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cql.comparable import AFTER
from airflow_cdc_provider.sources.cql.schema import DroppedColumn, TableSchema, number_columns
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_prefix
from airflow_cdc_provider.sources.cql.types import parse_type
from tests.chance import examples
from tests.oracles.cassandra_read_path import (
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
    STATIC,
    Cell,
    Contribution,
    Liveness,
    Reading,
    Row,
    write,
)
from tests.unit.sources.cassandra.commit_logs import (
    EPOCH_US,
    Marker,
    Stats,
    UpdateWriter,
    join_clustering,
    split_clustering,
    uvint,
    vbytes,
)
from tests.unit.sources.cassandra.decoded_changes import KEY, changes
from tests.unit.sources.cassandra.recordings import comparable, contribution
from tests.unit.sources.cassandra.updates import (
    PLAIN,
    RICH,
    SHUFFLED,
    WIDE,
    DrawnUpdate,
    sorted_cells,
    table,
    updates,
)


def decoded(schema: TableSchema, *payloads: bytes) -> list[Contribution]:
    """Decode payloads that must all be sound."""
    result = UpdateDecoder(schema).decode(changes(payloads), ())
    assert result.undecodable == []
    return [contribution(row) for row in result.contributions.to_pylist()]


def refused(schema: TableSchema, payload: bytes) -> str:
    """Decode one payload that must not be sound, between two that are; return the reason."""
    sound = _payload(UpdateWriter(schema).write(KEY, partition_deletion=(7, 8)))
    result = UpdateDecoder(schema).decode(changes([sound, payload, sound]), ())
    assert result.undecodable == [1]
    assert result.contributions.num_rows == 2
    assert result.contributions["state"][0] == result.contributions["state"][1]
    return result.reasons[0]


def _payload(update: bytes, version: int = 7) -> bytes:
    return bytes([version]) + update


def _expected(drawn: DrawnUpdate) -> list[Contribution]:
    found = []
    if drawn.partition_deletion:
        found.append(
            Contribution(drawn.key, PARTITION_DELETION, b"", None, 0, Row(deletion=drawn.partition_deletion))
        )
    if drawn.static:
        found.append(Contribution(drawn.key, STATIC, b"", None, 0, sorted_cells(drawn.static)))
    lower = b""
    for item in drawn.items:
        if isinstance(item, Row):
            if item.liveness or item.deletion or item.cells:
                place = comparable(drawn.table, split_clustering(item.clustering))
                found.append(Contribution(drawn.key, ROW, place, None, 0, sorted_cells(item)))
            continue
        bound = comparable(drawn.table, list(item.values))
        if item.kind in (5, 6, 7) and item.values:
            bound += bytes([AFTER])
        if item.closes:
            upper = bound if item.values else None
            found.append(Contribution(drawn.key, RANGE_DELETION, lower, upper, 0, Row(deletion=item.closes)))
        lower = bound
    return found


@settings(max_examples=examples(400))
@given(st.data(), st.sampled_from((6, 7, 8)), st.booleans(), st.booleans())
def test_written_updates_are_decoded(data: st.DataObject, version: int, borrow: bool, list_all: bool) -> None:
    drawn = data.draw(updates(version))
    writer = UpdateWriter(drawn.table, drawn.stats, borrow, list_all)
    update = writer.write(
        drawn.key, drawn.items, static=drawn.static, partition_deletion=drawn.partition_deletion
    )

    result = UpdateDecoder(drawn.table).decode(changes([_payload(update, version)], [drawn.key]), ())

    assert result.reasons == []
    assert result.contributions.schema == CONTRIBUTION_SCHEMA
    assert [contribution(row) for row in result.contributions.to_pylist()] == _expected(drawn)


@settings(max_examples=60)
@given(st.data(), st.lists(st.integers(0, 89), unique=True))
def test_more_than_64_columns_are_encoded_by_indexes_of_present_or_missing_ones(
    data: st.DataObject, there: list[int]
) -> None:
    names = sorted(column.name for column in WIDE.regular)
    ids = {column.name: column.id for column in WIDE.regular}
    cells = tuple(Cell(ids[names[i]], 5, struct.pack(">i", i)) for i in sorted(there))
    row = Row(Liveness(5), None, join_clustering([b"\0\0\0\x07"]), cells)

    (found,) = decoded(WIDE, _payload(UpdateWriter(WIDE, list_all=True).write(KEY, [row])))

    assert found.row == sorted_cells(row)


def test_cells_are_ordered_by_column_id_then_path_whatever_the_order_of_the_log() -> None:
    ids = {column.name: column.id for column in SHUFFLED.regular}
    assert ids["a"] > ids["e"]
    paths = [struct.pack(">i", n) for n in (-5, -1, 0, 3)]
    cells = (
        Cell(ids["a"], 1, b"\0\0\0\x09"),
        Cell(ids["b"], 1, end=9, complex_deletion=True),
        *(Cell(ids["b"], 2, path=path) for path in paths),
        Cell(ids["e"], 1, b"\1" * 16),
    )
    row = Row(None, None, join_clustering([b"\0\0\0\x07"]), cells)

    (found,) = decoded(SHUFFLED, _payload(UpdateWriter(SHUFFLED).write(KEY, [row])))

    assert [cell.place for cell in found.row.cells] == sorted(cell.place for cell in cells)
    assert set(found.row.cells) == set(cells)


def test_large_collections_are_sorted() -> None:
    ids = {column.name: column.id for column in SHUFFLED.regular}
    paths = [struct.pack(">i", n) for n in range(-3000, 3000)]
    cells = tuple(Cell(ids["b"], 2, path=path) for path in paths)
    row = Row(None, None, join_clustering([b"\0\0\0\x07"]), cells)

    (found,) = decoded(SHUFFLED, _payload(UpdateWriter(SHUFFLED).write(KEY, [row])))

    assert [cell.path for cell in found.row.cells] == sorted(paths)


def test_row_key_value_of_any_length_is_kept() -> None:
    big = bytes(range(256)) * 4000
    cells = (Cell(1, 5, b"\0\0\0\1"), Cell(2, 5, big))
    (found,) = decoded(PLAIN, _payload(UpdateWriter(PLAIN).write(KEY, [Row(Liveness(5), None, b"", cells)])))
    assert found.row.cells[1].value == big


@pytest.mark.covers("CAS-SCHEMA-04")
def test_cells_of_a_dropped_column_are_parsed_and_skipped() -> None:
    gone = table("t", "p id int\nr a int\nr b text\nr m map<int, text>", 0x21)
    old = {c.name: c for c in gone.regular}
    dropped = {n: DroppedColumn(n, "regular", old[n].type, 100) for n in ("b", "m")}
    now = replace(gone, columns=tuple(c for c in gone.columns if c.name not in dropped), dropped=dropped)
    cells = (
        Cell(old["a"].id, 50, b"\0\0\0\1"),
        Cell(old["b"].id, 50, b"old"),
        Cell(old["m"].id, 49, end=9, complex_deletion=True),
        Cell(old["m"].id, 50, b"x", path=b"\0\0\0\1"),
    )
    payload = _payload(UpdateWriter(gone).write(KEY, [Row(Liveness(50), None, b"", cells)]))

    (found,) = decoded(now, payload)

    assert found.row == Row(Liveness(50), None, b"", cells[:1])


def test_column_that_was_dropped_and_added_again_has_only_later_writes() -> None:
    schema = table("t", "p id int\nr a int\nr m map<int, text>", 0x22)
    ids = {c.name: c.id for c in schema.regular}
    dropped = {c.name: DroppedColumn(c.name, "regular", c.type, 100) for c in schema.regular}
    again = replace(schema, dropped=dropped)

    def row(time: int) -> Row:
        return Row(
            None,
            None,
            b"",
            (
                Cell(ids["a"], time, b"\0\0\0\1"),
                Cell(ids["m"], time, end=9, complex_deletion=True),
                Cell(ids["m"], time, b"x", path=b"\0\0\0\1"),
            ),
        )

    found = decoded(again, *(_payload(UpdateWriter(schema).write(KEY, [row(time)])) for time in (100, 101)))

    assert [c.row for c in found] == [row(101)]


def test_empty_row_has_no_contribution() -> None:
    row = Row(None, None, join_clustering([b"\0" * 8, b"x"]), ())
    assert decoded(RICH, _payload(UpdateWriter(RICH).write(KEY, [row]))) == []


def test_empty_update_makes_no_contribution() -> None:
    assert decoded(PLAIN, _payload(bytes.fromhex(PLAIN.id) + vbytes(KEY) + b"\x01")) == []


def test_null_clustering_of_compact_tables_comes_first() -> None:
    rows = [Row(Liveness(5), None, join_clustering([b"\0" * 8, value])) for value in (b"", None)]
    found = decoded(RICH, _payload(UpdateWriter(RICH).write(KEY, rows)))
    assert [c.row.clustering for c in found] == [row.clustering for row in rows]
    assert found[1].clustering < found[0].clustering


@pytest.mark.covers("CAS-GAP-04")
def test_adjoining_range_deletions_share_a_boundary() -> None:
    one, two = (1 << 40, 100), (1 << 41, 200)
    middle = struct.pack(">q", 50)
    items = [
        Marker(1, (), opens=one),
        Marker(5, (middle,), closes=one, opens=two),
        Marker(6, (), closes=two),
    ]

    first, second = decoded(RICH, _payload(UpdateWriter(RICH).write(KEY, items)))

    bound = comparable(RICH, [middle]) + bytes([AFTER])
    assert (first.clustering, first.clustering_end, first.row.deletion) == (b"", bound, one)
    assert (second.clustering, second.clustering_end, second.row.deletion) == (bound, None, two)


def test_fences_give_each_change_the_generation_of_its_position_in_its_own_origin() -> None:
    payload = _payload(UpdateWriter(PLAIN).write(KEY, [Row(Liveness(5))]))
    places = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 3)]
    batch = changes(
        [payload] * 5,
        origin=[origin for origin, _ in places],
        position=[Position(9, end).pack() for _, end in places],
        generation=[0, 0, 0, 0, 5],
    )
    fences = [Fence(1, "a", Position(9, 2).pack(), 1), Fence(2, "", Position(9, 2, 7).pack(), 2)]

    result = UpdateDecoder(PLAIN).decode(batch, fences)

    assert result.contributions["generation"].to_pylist() == [0, 0, 2, 0, 5]


def test_node_without_a_record_of_the_newest_fence_is_evaluated_by_the_creation_of_its_segments() -> None:
    payload = _payload(UpdateWriter(PLAIN).write(KEY, [Row(Liveness(5))]))
    noon_ms = 1_795_000_000_000
    segments = [("b", 0), ("b", 60_000), ("b", 60_001), ("a", 60_001), ("", 0)]
    batch = changes(
        [payload] * 5,
        origin=[origin for origin, _ in segments],
        position=[Position(noon_ms + after, 7).pack() for _, after in segments],
    )
    record = Fence(noon_ms * 1000, "a", Position(noon_ms + 60_001, 9).pack(), noon_ms * 1000)

    result = UpdateDecoder(PLAIN).decode(batch, [record])

    assert result.contributions["generation"].to_pylist() == [0, 0, noon_ms * 1000, 0, 0]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda p: b"", "unknown-tag"),
        (lambda p: p[:1], "truncated"),
        (lambda p: p[:17], "truncated"),
        (lambda p: p[:-1], "truncated"),
        (lambda p: p + b"\0", "trailing-bytes"),
        (lambda p: b"\x05" + p[1:], "unknown-tag"),
        (lambda p: b"\x09" + p[1:], "unknown-tag"),
        (lambda p: p[:1] + b"\xff" * 16 + p[17:], "other-table"),
        (lambda p: p.replace(b"\x01a", b"\x01z"), "unknown-column"),
        (lambda p: p[:22] + b"\x12" + p[23:], "bad-flags"),
    ],
)
def test_malformed_payload_is_skipped_with_a_code(change: Any, code: str) -> None:
    sound = _payload(
        UpdateWriter(PLAIN).write(KEY, [Row(Liveness(5), None, b"", (Cell(1, 6, b"\0\0\0\1"),))])
    )
    assert len(decoded(PLAIN, sound)) == 1
    assert refused(PLAIN, change(sound)).startswith(f"{code}: ")


def test_reason_names_the_unknown_column() -> None:
    newer = table("plain", "p id int\nr a int\nr added int", 0x11)
    row = Row(Liveness(5), None, b"", (Cell(2, 5, b"\0\0\0\1"),))
    assert "'added' at byte" in refused(PLAIN, _payload(UpdateWriter(newer).write(KEY, [row])))


@pytest.mark.parametrize(
    ("row", "version"),
    [
        (Row(None, (5, 0x80000000)), 7),
        (Row(None, (5, 0xFFFFFFFE)), 8),
        (Row(Liveness(5, 100, 99)), 7),
        (Row(None, None, b"", (Cell(1, 5, b"\0\0\0\1", expiring=True, ttl=100, end=99),)), 7),
        (Row(None, None, b"", (Cell(1, 5, tombstone=True, end=0x80000000),)), 6),
    ],
)
def test_times_out_of_a_versions_range_are_rejected(row: Row, version: int) -> None:
    payload = _payload(UpdateWriter(PLAIN).write(KEY, [row]), version)
    assert refused(PLAIN, payload).startswith("bad-expiry: ")


def test_deletion_times_are_unsigned_in_version_8() -> None:
    payload = _payload(UpdateWriter(PLAIN).write(KEY, [Row(None, (5, 0xFFFFFFFD))]), 8)
    assert decoded(PLAIN, payload)[0].row.deletion == (5, 0xFFFFFFFD)


@pytest.mark.parametrize(
    "items",
    [
        [Marker(1, (b"\0" * 8,), opens=(5, 6))],
        [Marker(6, (b"\0" * 8,), closes=(5, 6))],
        [Marker(1, (), opens=(5, 6)), Marker(6, (), closes=(5, 7))],
        [Marker(1, (), opens=(5, 6)), Marker(1, (), opens=(5, 6))],
        [Marker(7, (), opens=(5, 6)), Marker(6, (), closes=(5, 6))],
        [Marker(8, (b"\0" * 8,), opens=(5, 6))],
        [Marker(1, (b"\0" * 8, b"x", b"y"), opens=(5, 6))],
    ],
)
def test_unpaired_markers_are_rejected(items: list[Marker]) -> None:
    assert refused(RICH, _payload(UpdateWriter(RICH).write(KEY, items))).startswith(
        ("bad-marker", "truncated")
    )


def test_clustering_value_of_a_wrong_length_is_rejected_and_others_are_decoded() -> None:
    schema = table("t", "p id int\nc k smallint\nr a int", 0x23)
    rows = [Row(Liveness(5), None, join_clustering([value])) for value in (b"\0\1", b"\0\1\2")]
    sound, broken = (_payload(UpdateWriter(schema).write(KEY, [row])) for row in rows)

    result = UpdateDecoder(schema).decode(changes([sound, broken, sound]), ())

    assert result.undecodable == [1]
    assert result.reasons[0].startswith("bad-clustering: ")
    assert [contribution(r).row.clustering for r in result.contributions.to_pylist()] == [
        rows[0].clustering
    ] * 2


def test_two_cells_of_one_path_are_rejected() -> None:
    ids = {c.name: c.id for c in SHUFFLED.regular}
    cells = tuple(Cell(ids["b"], time, path=b"\0\0\0\1") for time in (1, 2))
    row = Row(None, None, join_clustering([b"\0\0\0\x07"]), cells)
    assert refused(SHUFFLED, _payload(UpdateWriter(SHUFFLED).write(KEY, [row]))).startswith("duplicate-cell")


def test_shadowable_deletions_of_old_views_are_rejected() -> None:
    head = bytes.fromhex(PLAIN.id) + vbytes(KEY) + b"\x10" + Stats().header() + uvint(0) + uvint(1)
    assert refused(PLAIN, _payload(head + b"\xb0\x02" + Stats().deletion((5, 6)) + b"\x01")).startswith(
        "shadow"
    )


def test_no_changes_yield_no_contributions() -> None:
    result = UpdateDecoder(PLAIN).decode(changes([]), [Fence(1, "", b"", 1)])
    assert result.contributions.num_rows == 0
    assert result.contributions.schema == CONTRIBUTION_SCHEMA
    assert result.undecodable == []


def test_part_of_a_batch_is_decoded_as_the_batch_is() -> None:
    payloads = [_payload(UpdateWriter(PLAIN).write(KEY, [Row(Liveness(5 + i))])) for i in range(5)]
    batch = changes(payloads)
    part = UpdateDecoder(PLAIN).decode(batch.slice(2, 2), ()).contributions
    assert part.equals(UpdateDecoder(PLAIN).decode(batch, ()).contributions.slice(2, 2))


def test_decoder_travels_by_pickle() -> None:
    decoder = pickle.loads(pickle.dumps(UpdateDecoder(RICH)))
    row = Row(Liveness(EPOCH_US), None, join_clustering([b"\0" * 8, b"x"]))
    payload = _payload(UpdateWriter(RICH).write(KEY, [row]))
    assert decoder.decode(changes([payload]), ()).contributions.num_rows == 1


# Snapshot rows


def _snapshot(schema: TableSchema, row: Row, *, static: bool = False) -> bytes:
    columns = schema.static if static else schema.regular
    places = {column.id: place for place, column in enumerate(columns)}
    renumbered = replace(row, cells=tuple(replace(c, column=places[c.column]) for c in row.cells))
    return snapshot_prefix([c.name for c in columns], static=static) + write(renumbered, static)


@settings(max_examples=examples(200))
@given(st.data())
def test_snapshot_row_has_the_ids_of_the_schema(data: st.DataObject) -> None:
    drawn = data.draw(updates(8))
    for item in drawn.items:
        if isinstance(item, Row):
            row = replace(item, liveness=item.liveness or Reading(77))
            (found,) = decoded(drawn.table, _snapshot(drawn.table, row))
            place = comparable(drawn.table, split_clustering(row.clustering))
            assert found == Contribution(KEY, ROW, place, None, 0, sorted_cells(row))
    if drawn.static:
        found_static = decoded(drawn.table, _snapshot(drawn.table, drawn.static, static=True))
        assert [c.row for c in found_static] == ([sorted_cells(drawn.static)] if drawn.static.cells else [])


def test_snapshot_row_of_an_earlier_schema_loses_its_dropped_columns_only() -> None:
    before = table("t", "p id int\nr a int\nr b int", 0x24)
    ids = {c.name: c.id for c in before.regular}
    dropped = {"a": DroppedColumn("a", "regular", parse_type("int"), 100)}
    now = number_columns(
        replace(before, columns=tuple(c for c in before.columns if c.name != "a"), dropped=dropped), {"b": 7}
    )
    row = Row(Reading(50), None, b"", (Cell(ids["a"], 50, b"\0\0\0\1"), Cell(ids["b"], 50, b"\0\0\0\2")))

    (found,) = decoded(now, _snapshot(before, row))

    assert found.row == Row(Reading(50), None, b"", (Cell(7, 50, b"\0\0\0\2"),))


def test_malformed_snapshot_rows_are_rejected() -> None:
    row = Row(Liveness(5), None, b"", (Cell(1, 5, b"\0\0\0\1"),))
    sound = _snapshot(PLAIN, row)
    assert len(decoded(PLAIN, sound)) == 1
    for length in range(1, len(sound)):
        assert refused(PLAIN, sound[:length]).startswith("bad-snapshot: ")
    assert refused(PLAIN, sound + b"\0").startswith("bad-snapshot: ")
    assert refused(PLAIN, sound.replace(b"\x01\0a", b"\x01\0z")).startswith("unknown-column: ")
