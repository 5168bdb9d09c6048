from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, LIVE_ROW_SCHEMA, UPSERT
from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile import reconcile_rows
from airflow_cdc_provider.sources.contract import Codec, Decoded
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory, lineage_of
from airflow_cdc_provider.sources.vitess.schema_ids import LINEAGE, REREAD, schema_id
from airflow_cdc_provider.sources.vitess.states import key_prefix, shards_of
from tests.unit.sources.vitess.record_builders import (
    TABLE,
    batch,
    change,
    changed,
    fields,
    place,
    ran,
    record,
    seen,
)

SHAPE = {"id": "bigint", "v": "varchar(20)"}
TWO = fields(SHAPE)


def codec_of(*records: Mapping[str, Any], **more: Any) -> VitessCodec:
    return VitessCodec(TABLE, TableHistory.of(TABLE, records), lineage_of(records), **more)


def rows_of(decoded: Decoded, codec: VitessCodec, fences: Sequence[Fence] = ()) -> list[dict[str, Any]]:
    """Reconcile contributions and show what lives."""
    live = live_of(decoded.contributions, max((f.generation for f in fences), default=0))
    return sorted(map(json.loads, codec.to_json(live)), key=str)


def live_of(contributions: pa.RecordBatch, generation: int = 0) -> pa.RecordBatch:
    table = pa.Table.from_batches([contributions], CONTRIBUTION_SCHEMA)
    live = reconcile_rows(table, 0, min_generation=generation).live.combine_chunks().to_batches()
    return live[0] if live else pa.RecordBatch.from_pylist([], LIVE_ROW_SCHEMA)


def projected(codec: VitessCodec, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    decoded = codec.decode(batch(records), ())
    assert decoded.reasons == ()
    return codec.project(live_of(decoded.contributions)).to_pylist()


def test_the_codec_keeps_the_contract_and_travels() -> None:
    codec: Codec = codec_of(seen(TWO, 1))
    again = pickle.loads(pickle.dumps(codec))
    assert again.mirror_schema() == codec.mirror_schema()
    assert codec.mirror_schema().names == ["id", "v", "_rest"]
    assert codec.decode(batch([]), ()).contributions.num_rows == 0
    assert codec.project(pa.RecordBatch.from_pylist([], LIVE_ROW_SCHEMA)).num_rows == 0


def test_insert_update_and_delete_of_a_row_leave_its_last_state() -> None:
    codec = codec_of(seen(TWO, 1))
    decoded = codec.decode(
        batch(
            [
                changed(TWO, change(None, ["1", "a"]), 2),
                changed(TWO, change(["1", "a"], ["1", "b"]), 3),
                changed(TWO, change(None, ["2", "x"]), 2, number=1),
                changed(TWO, change(["2", "x"], None), 4),
            ]
        ),
        (),
    )
    assert rows_of(decoded, codec) == [{"id": "1", "v": "b"}]
    assert decoded.contributions["op"].to_pylist().count(UPSERT) == 3


@pytest.mark.covers("VIT-KEY-05")
@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6))
def test_the_newest_change_of_a_key_is_enough_in_any_order_and_with_copies(
    order: list[int], again: list[int]
) -> None:
    codec = codec_of(seen(TWO, 1))
    records = [
        changed(TWO, change(None, ["1", "a"]), 2),
        changed(TWO, change(["1", "a"], ["1", "b"]), 3),
        changed(TWO, change(["1", "b"], ["9", "b"]), 4),
        changed(TWO, change(None, ["1", "new"]), 5),
        changed(TWO, change(["9", "b"], None), 6),
        changed(TWO, change(["1", "new"], ["1", None]), 7),
    ]
    decoded = codec.decode(batch([records[n] for n in (*order, *again)]), ())
    assert rows_of(decoded, codec) == [{"id": "1", "v": None}]


def test_a_changed_key_deletes_the_row_of_the_old_one() -> None:
    codec = codec_of(seen(TWO, 1))
    decoded = codec.decode(
        batch([changed(TWO, change(None, ["1", "a"]), 2), changed(TWO, change(["1", "a"], ["10", "a"]), 3)]),
        (),
    )
    assert rows_of(decoded, codec) == [{"id": "10", "v": "a"}]
    assert decoded.rows == [0, 1, 1]


def test_keys_contain_their_shards() -> None:
    names = ["shop/-80", "shop/0", "shop/80-", "shop/0"]
    keys = pa.array([b"", *(key_prefix(name) + bytes(range(n)) for n, name in enumerate(names))], pa.binary())
    assert shards_of(keys.slice(1)).to_pylist() == names
    assert shards_of(keys.slice(0, 0)).to_pylist() == []


def test_one_key_in_two_shards_is_two_rows() -> None:
    codec = codec_of(seen(TWO, 1))
    decoded = codec.decode(
        batch(
            [
                changed(TWO, change(None, ["1", "left"]), 2, "-80"),
                changed(TWO, change(None, ["1", "right"]), 9, "80-"),
                changed(TWO, change(["1", "right"], None), 10, "80-"),
                changed(TWO, change(None, ["1", "right again"]), 11, "80-"),
            ]
        ),
        (),
    )
    assert rows_of(decoded, codec) == [{"id": "1", "v": "left"}, {"id": "1", "v": "right again"}]


def lineage(child: str, *ancestors: str) -> dict[str, Any]:
    reported = json.dumps({f"shop/{child}": [f"shop/{one}" for one in ancestors]}).encode()
    return record(SCHEMA, reported, LINEAGE, place(0, epoch=2), child, source_table=None)


def test_a_change_of_a_new_shard_with_a_row_before_removes_its_ancestors_row() -> None:
    codec = codec_of(seen(TWO, 1), lineage("-40", "-80"), lineage("40-80", "-80"))
    parent = changed(TWO, change(None, ["1", "old"]), 5, "-80")
    later = place(1, epoch=2)
    update = record("change", change(["1", "old"], ["1", "new"]), schema_id(TWO), later, "-40")
    insert = record("change", change(None, ["1", "other"]), schema_id(TWO), later, "40-80")
    for records in ([parent, update], [update, parent]):
        assert rows_of(codec.decode(batch(records), ()), codec) == [{"id": "1", "v": "new"}]
    # An insert proves nothing of the ancestor's row: it may live on in the other child.
    assert len(rows_of(codec.decode(batch([parent, insert]), ()), codec)) == 2


def test_ancestors_of_ancestors_count_too() -> None:
    found = lineage_of([lineage("-40", "-80"), lineage("-20", "-40"), lineage("-20", "-40", "-80")])
    assert found == {"shop/-20": ("shop/-40", "shop/-80"), "shop/-40": ("shop/-80",)}


def test_values_that_copy_and_stream_print_differently_have_the_same_key() -> None:
    event = fields(
        {"id": "int(6) unsigned zerofill", "d": "decimal(6,2)", "e": "enum('a','b')", "v": "varchar(9)"},
        ("id", "d", "e"),
    )
    numbers = fields(
        {"id": "int(6) unsigned zerofill", "d": "decimal(6,2)", "e": "enum('a','b')", "v": "varchar(9)"},
        ("id", "d", "e"),
        as_text=False,
    )
    codec = codec_of(seen(event, 1), seen(numbers, 2))
    copied = record(
        SNAPSHOT, change(None, ["000042", "0.50", "b", "copied"]), schema_id(event), place(3), "-80"
    )
    streamed = changed(numbers, change(["42", ".50", "2", "copied"], ["42", ".5", "2", "streamed"]), 4)
    assert rows_of(codec.decode(batch([copied, streamed]), ()), codec) == [
        {"id": "000042", "d": "0.50", "e": "b", "v": "streamed"}
    ]


def test_a_snapshots_row_wins_at_its_position_and_loses_to_later_changes() -> None:
    codec = codec_of(seen(TWO, 1))
    snapshot = record(SNAPSHOT, change(None, ["1", "read"]), schema_id(TWO), place(5, 0xFFFFFFFF), "-80")
    before = changed(TWO, change(["1", "a"], ["1", "b"]), 5)
    after = changed(TWO, change(["1", "read"], None), 6)
    assert rows_of(codec.decode(batch([snapshot, before]), ()), codec) == [{"id": "1", "v": "read"}]
    assert rows_of(codec.decode(batch([snapshot, after]), ()), codec) == []


def test_rows_before_a_fence_of_their_shard_are_of_an_earlier_generation() -> None:
    codec = codec_of(seen(TWO, 1))
    fences = (Fence(7, "shop/-80", place(5), 7),)
    records = [
        changed(TWO, change(None, ["1", "gone"]), 4),
        changed(TWO, change(None, ["2", "stays"]), 6),
    ]
    decoded = codec.decode(batch(records), fences)
    assert decoded.contributions["generation"].to_pylist() == [0, 7]
    assert rows_of(decoded, codec, fences) == [{"id": "2", "v": "stays"}]


def test_a_shard_created_by_a_reshard_is_above_the_fences_of_its_ancestors() -> None:
    codec = codec_of(seen(TWO, 1), lineage("-40", "-80"))
    fences = (Fence(7, "shop/-80", place(500), 7),)
    child = {**changed(TWO, change(None, ["1", "new"]), 4), "origin": "shop/-40"}
    child["position"] = child["version"] = place(4, epoch=2)

    decoded = codec.decode(batch([child]), fences)

    assert decoded.contributions["generation"].to_pylist() == [7]


def test_a_table_truncated_in_a_shard_created_by_a_reshard_requires_a_snapshot() -> None:
    records = [seen(TWO, 1), lineage("-40", "-80")]
    assert TableHistory.of(TABLE, [*records, ran("truncate table t", 5, "80-")]).due is None
    for statement in ("truncate table t", "drop table t"):
        due = TableHistory.of(TABLE, iter([*records, ran(statement, 5, "-40")])).due
        assert due is not None
        assert "shop/-40 ran a" in due.reason


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (change(None, ["1"]), "ROW-WIDTH: 1 values for 2 columns"),
        (change(["1", "a", "b"], ["1", "a"]), "ROW-WIDTH: 3 values for 2 columns"),
        (change(None, None), "NO-ROW: the change has neither a before-image nor an after-image"),
        (change(None, [None, "a"]), "NO-KEY: a key column is NULL"),
        (b"\x12\x05\x0a", "BROKEN-ROW: a field leaves its message"),
    ],
)
def test_a_row_that_cant_be_decoded_is_reported_and_the_others_are_not_lost(
    message: Any, reason: str
) -> None:
    codec = codec_of(seen(TWO, 1))
    good = changed(TWO, change(None, ["7", "good"]), 2)
    decoded = codec.decode(batch([good, changed(TWO, message, 3)]), ())
    assert (decoded.undecodable, decoded.reasons) == ((1,), (reason,))
    assert rows_of(decoded, codec) == [{"id": "7", "v": "good"}]


def test_rows_whose_fields_arent_recorded_are_reported() -> None:
    other = fields({"id": "bigint"})
    decoded = codec_of(seen(TWO, 1)).decode(batch([changed(other, change(None, ["1"]), 2)]), ())
    assert decoded.reasons == ("NO-FIELDS: the fields of the row aren't recorded",)


def test_partial_rows_and_json_updates_are_reported() -> None:
    event = fields({"id": "bigint", "j": "json", "k": "json"})
    partial = change(["1", "{}", "{}"], ["1", None, "{}"])
    partial.data_columns.count, partial.data_columns.cols = 3, b"\x05"
    expression = change(["1", "{}", "{}"], ["1", "{}", "JSON_REPLACE(%s, '$.a', 1)"])
    expression.json_partial_values.count, expression.json_partial_values.cols = 2, b"\x02"
    whole = change(None, ["2", "{}", "{}"])
    whole.json_partial_values.count, whole.json_partial_values.cols = 2, b"\x00"
    decoded = codec_of(seen(event, 1)).decode(
        batch([changed(event, one, 2) for one in (partial, expression, whole)]), ()
    )
    assert [reason.split(":")[0] for reason in decoded.reasons] == ["PARTIAL-ROW", "PARTIAL-JSON"]
    assert decoded.contributions.num_rows == 1


@pytest.mark.covers("VIT-KEY-02")
def test_without_a_primary_key_a_unique_column_that_is_never_null_is_the_key() -> None:
    event = fields({"a": "int", "u": "int unique not null", "w": "int unique not null"}, ())
    codec = codec_of(seen(event, 1))
    assert codec.history.newest.key == (1,)
    records = [
        changed(event, change(None, ["1", "5", "1"]), 2),
        changed(event, change(["1", "5", "1"], ["2", "5", "2"]), 3),
    ]
    assert rows_of(codec.decode(batch(records), ()), codec) == [{"a": "2", "u": "5", "w": "2"}]
    assert codec_of(seen(fields({"u": "int unique"}, ()), 1)).history.newest.key == ()


@pytest.mark.covers("VIT-KEY-03")
def test_without_a_key_rows_can_only_be_those_of_a_snapshot() -> None:
    event = fields({"a": "int", "b": "int"}, ())
    codec = codec_of(seen(event, 1))
    assert not codec.has_key
    copies = [
        record(SNAPSHOT, change(None, ["1", "1"]), schema_id(event), place(3, 0xFFFFFFFF) + bytes([n]), "-80")
        for n in range(2)
    ]
    decoded = codec.decode(batch([*copies, changed(event, change(None, ["1", "1"]), 4)]), ())
    assert rows_of(decoded, codec) == [{"a": "1", "b": "1"}] * 2


@pytest.mark.covers("VIT-EVT-14")
def test_rows_of_each_schema_are_projected_to_the_newest() -> None:
    first = fields({"id": "bigint", "a": "int", "b": "varchar(10)"})
    second = fields({"id": "bigint", "b": "varchar(10)", "c": "decimal(6,2)", "n": "int"})
    third = fields({"n": "bigint", "id": "bigint", "name": "text", "c": "decimal(8,2)"})
    history = [
        seen(first, 1),
        ran("ALTER TABLE t ADD COLUMN c decimal(6,2) NOT NULL DEFAULT 9.99, DROP a, ADD n int", 5),
        seen(second, 6),
        ran("alter table `t` change b name text, modify n bigint first, MODIFY c decimal(8,2)", 8, "-80"),
        ran("alter table other drop name", 8, "-80"),
        seen(third, 9),
    ]
    codec = codec_of(*history)
    assert codec.history.due is None
    assert codec.history.column_ids == ("n", "id", "b", "c")
    rows = [
        changed(first, change(None, ["1", "5", "one"]), 2),
        changed(second, change(None, ["2", "two", "1.00", "7"]), 6),
        changed(third, change(None, ["8", "3", "three", "-0.5"]), 9),
    ]
    found = sorted(projected(codec, rows), key=lambda row: row["id"])
    assert found == [
        {"n": None, "id": 1, "name": "one", "c": Decimal("9.99"), "_rest": None},
        {"n": 7, "id": 2, "name": "two", "c": Decimal("1.00"), "_rest": None},
        {"n": 8, "id": 3, "name": "three", "c": Decimal("-0.50"), "_rest": None},
    ]


def test_schemas_first_seen_in_another_shard_are_derived_from_its_own_statements() -> None:
    first = fields({"id": "bigint", "a": "int"})
    second = fields({"id": "bigint", "b": "int"})
    third = fields({"id": "bigint", "b": "int", "a": "int"})
    codec = codec_of(
        seen(first, 1, "-80"),
        ran("alter table t rename column a to b", 4, "-80"),
        ran("alter table t rename column a to b", 40, "80-"),
        seen(second, 5, "-80"),
        ran("alter table t add a int default 3", 50, "80-"),
        seen(third, 51, "80-"),
        ran("alter table t add a int default 3", 60, "-80"),
    )
    assert codec.history.due is None
    rows = [changed(first, change(None, ["1", "7"]), 2), changed(second, change(None, ["2", "8"]), 6)]
    assert [(row["b"], row["a"]) for row in sorted(projected(codec, rows), key=lambda r: r["id"])] == [
        (7, 3),
        (8, 3),
    ]


def in_one_second(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    moment = records[0]["committed_at"]
    return [{**one, "committed_at": moment, "captured_at": moment} for one in records]


@pytest.mark.parametrize(("low", "high"), [(10, 500), (500, 10)])
def test_statements_of_one_second_order_the_shapes_between_them(low: int, high: int) -> None:
    """Rows of the shape in the middle are in one shard alone, whose positions say nothing of the other's."""
    shapes = [
        fields({"id": "bigint", "a": "int"}),
        fields({"id": "bigint", "a": "int", "b": "int"}),
        fields({"id": "bigint", "a": "bigint", "b": "int"}),
    ]
    add, widen = "alter table t add b int default 7", "alter table t modify a bigint"
    records = in_one_second(
        [
            seen(shapes[0], low, "-80"),
            ran(add, low + 1, "-80"),
            seen(shapes[1], low + 2, "-80"),
            ran(widen, low + 3, "-80"),
            seen(shapes[2], low + 4, "-80"),
            ran(add, high + 1, "80-"),
            ran(widen, high + 2, "80-"),
            seen(shapes[2], high + 3, "80-"),
        ]
    )
    for order in (records, records[::-1]):
        history = TableHistory.of(TABLE, order)

        assert [[c.column_type for c in shape.columns] for shape in history.shapes] == [
            ["bigint", "int"],
            ["bigint", "int", "int"],
            ["bigint", "bigint", "int"],
        ]
        assert history.due is None
        codec = VitessCodec(TABLE, history)
        rows = [
            changed(shapes[0], change(None, ["1", "5"]), low),
            changed(shapes[1], change(None, ["2", "5", "6"]), low + 2),
            changed(shapes[2], change(None, ["3", str(1 << 40), "6"]), high + 3, "80-"),
        ]
        found = sorted((row["id"], row["a"], row["b"]) for row in projected(codec, rows))
        assert found == [(1, 5, 7), (2, 5, 6), (3, 1 << 40, 6)]


def test_a_shard_whose_clock_is_ahead_does_not_make_an_older_shape_the_newest() -> None:
    narrow, wide = fields({"id": "bigint", "a": "int"}), fields({"id": "bigint", "a": "bigint"})
    widen = "alter table t modify a bigint"
    history = TableHistory.of(
        TABLE,
        [
            ran("alter table t comment 'x'", 1, "80-"),
            ran("alter table t comment 'x'", 90, "-80"),
            ran(widen, 4, "80-"),
            seen(wide, 5, "80-"),
            seen(narrow, 91, "-80"),
            ran(widen, 92, "-80"),
        ],
    )
    assert [shape.columns[1].column_type for shape in history.shapes] == ["int", "bigint"]
    assert history.due is None


def test_a_shard_created_by_a_reshard_has_the_schemas_of_its_parents() -> None:
    narrow, wide = fields({"id": "bigint", "a": "int"}), fields({"id": "bigint", "a": "bigint"})
    history = TableHistory.of(
        TABLE,
        [
            seen(narrow, 1, "-80"),
            ran("alter table t modify a bigint", 5, "-80"),
            seen(wide, 9, "-40"),
        ],
    )
    assert [shape.columns[1].column_type for shape in history.shapes] == ["int", "bigint"]


def test_two_columns_may_swap_their_names() -> None:
    first = fields({"id": "bigint", "a": "int", "b": "varchar(9)"})
    second = fields({"id": "bigint", "b": "int", "a": "varchar(9)"})
    codec = codec_of(
        seen(first, 1), ran("alter table t rename column a to b, rename column b to a", 3), seen(second, 4)
    )
    assert projected(codec, [changed(first, change(None, ["1", "7", "x"]), 2)])[0] == {
        "id": 1, "b": 7, "a": "x", "_rest": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "after", "reason"),
    [
        (
            "alter table t convert to character set latin1",
            {"id": "bigint", "v": "varchar(20)"},
            "ran: alter table t",
        ),
        (
            "alter table t add n int not null",
            {"id": "bigint", "v": "varchar(20)", "n": "int"},
            "column n was added",
        ),
        (
            "alter table t modify v int",
            {"id": "bigint", "v": "int"},
            "column v changed from varchar(20) to int",
        ),
        ("alter table t add n int default 1e3", {**SHAPE, "n": "int"}, "column n was added"),
        ("alter table t add n int default 1, modify n text", {**SHAPE, "n": "text"}, "column n was added"),
        ("alter table t add n timestamp", {**SHAPE, "n": "timestamp not null"}, "column n was added"),
        ("alter table t add n double default 0", {**SHAPE, "n": "float(7,4)"}, "column n was added"),
        (
            "alter table t modify id int",
            {"id": "int", "v": "varchar(20)"},
            "column id changed from bigint to int",
        ),
        (
            "rename table t to u, w to t",
            {"id": "bigint", "v": "varchar(20)", "w": "int"},
            "column w was added",
        ),
    ],
)
def test_schema_changes_without_a_statement_require_a_snapshot(
    statement: str, after: dict[str, str], reason: str
) -> None:
    later = fields(after)
    due = TableHistory.of(TABLE, [seen(TWO, 1), ran(statement, 5), seen(later, 6)]).due
    assert due is not None
    assert reason in due.reason
    assert due.moment_us >= 1_767_225_605_000_000


LATIN1, UTF8MB3, UTF8MB4, UTF16 = 8, 33, 255, 54


@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        (("varchar(63)", UTF8MB4), ("tinytext", UTF8MB4), True),
        (("varchar(64)", UTF8MB4), ("tinytext", UTF8MB4), False),
        (("varchar(16383)", UTF8MB4), ("text", UTF8MB4), True),
        (("varchar(20000)", LATIN1), ("text", UTF8MB4), False),
        (("tinytext", UTF8MB4), ("varchar(255)", UTF8MB4), True),
        (("tinytext", UTF8MB4), ("varchar(254)", UTF8MB4), False),
        (("text", UTF8MB3), ("text", UTF8MB4), True),
        (("text", LATIN1), ("text", UTF8MB4), False),
        (("text", LATIN1), ("mediumtext", UTF8MB4), True),
        (("varchar(9)", LATIN1), ("varchar(9)", UTF16), True),
        (("varchar(9)", UTF8MB4), ("varchar(9)", UTF8MB3), False),
        (("varchar(9)", UTF8MB4), ("varchar(9)", LATIN1), False),
    ],
)
def test_texts_that_may_be_cut_or_lack_a_character_require_a_snapshot(
    before: tuple[str, int], after: tuple[str, int], *, known: bool
) -> None:
    old, new = (fields({"id": "bigint", "v": kind}) for kind, _ in (before, after))
    old.fields[1].charset, new.fields[1].charset = before[1], after[1]
    records = [seen(old, 1), ran("alter table t modify v text", 5), seen(new, 6)]
    assert (TableHistory.of(TABLE, records).due is None) is known


def test_a_recreated_table_starts_without_values_of_its_old_columns() -> None:
    later = fields({"id": "bigint", "v": "varchar(20)", "n": "int not null"})
    history = TableHistory.of(
        TABLE, [seen(TWO, 1), ran("drop table t", 4), ran("create table t (id bigint)", 5), seen(later, 6)]
    )
    assert history.due is None
    assert history.column_ids == ("id#2", "v#2", "n")


def test_values_that_a_column_cant_represent_are_in_rest_as_mysqls_text() -> None:
    event = fields({"id": "bigint", "d": "date", "at": "datetime", "v": "varchar(9)"})
    codec = codec_of(seen(event, 1))
    rows = [
        changed(event, change(None, ["1", "0000-00-00", "2023-11-00 00:00:00", b"\xff"]), 2),
        changed(event, change(None, ["2", "2024-02-29", None, "x"]), 2, number=1),
    ]
    odd, plain = sorted(projected(codec, rows), key=lambda row: row["id"])
    assert (odd["d"], odd["at"], odd["v"]) == (None, None, None)
    assert json.loads(odd["_rest"]) == {"d": "0000-00-00", "at": "2023-11-00 00:00:00", "v": "0xFF"}
    assert plain["_rest"] is None


def test_text_that_is_not_json_is_in_rest() -> None:
    event = fields({"id": "bigint", "j": "json"})
    broken: list[str | bytes] = [
        '"base64:type15:AP8=", 1.0]',
        "{",
        "",
        "[1,]",
        '["a" 1]',
        b"\xff",
        "nul",
        "01",
        "[" * 300,
    ]
    whole: list[str | bytes] = [
        "null",
        '"base64:type15:AP8="',
        '{"a": [1.5e-7, {}], "b": "\\u00e9\\""}',
        "[" * 100 + "]" * 100,
    ]
    rows = [
        changed(event, change(None, [str(number), text]), 2, number=number)
        for number, text in enumerate(broken + whole)
    ]
    found = sorted(projected(codec_of(seen(event, 1)), rows), key=lambda row: row["id"])
    assert [row["j"] for row in found] == [*[None] * len(broken), *whole]
    texts = ["0xFF" if isinstance(text, bytes) else text for text in broken]
    assert [json.loads(row["_rest"])["j"] for row in found[: len(broken)]] == texts


def test_a_change_whose_values_did_not_arrive_requires_a_snapshot_that_starts_after_it() -> None:
    again = record(SCHEMA, b"3 rows", REREAD, place(9), "-80")
    history = TableHistory.of(TABLE, [seen(TWO, 1), again, {**again, "source_table": "shop.other"}])
    assert len(history.shapes) == 1
    assert history.reread_us == int(again["captured_at"].timestamp() * 1_000_000)
    assert TableHistory.of("shop.u", [again]).reread_us == 0


def test_columns_with_names_that_mirrors_need_have_others() -> None:
    codec = codec_of(
        seen(fields({"id": "bigint", "_rest": "int", "_CDC": "int", "_deleted": "int", "a.b": "int"}), 1)
    )
    assert codec.mirror_schema().names == ["id", "_rest__2", "x_CDC", "_deleted__2", "a.b", "_rest"]
    assert [name for name, *_ in codec.remember()["columns"]] == codec.mirror_schema().names[:-1]


def test_a_column_keeps_its_name_whatever_is_added_before_it_or_dropped() -> None:
    first = seen(fields({"id": "bigint", "a.b": "int"}), 1)
    second = [
        ran("alter table t add a int first", 2),
        seen(fields({"a": "int", "id": "bigint", "a.b": "int"}), 3),
    ]
    third = [
        ran("alter table t drop `a.b`, add `a.c` int", 4),
        seen(fields({"a": "int", "id": "bigint", "a.c": "int"}), 5),
    ]
    fourth = [ran("alter table t drop a", 6), seen(fields({"id": "bigint", "a.c": "int"}), 7)]

    names = [
        codec_of(*records).mirror_schema().names[:-1]
        for records in ([first, *second], [first, *second, *third], [first, *second, *third, *fourth])
    ]

    assert names == [["a__2", "id", "a.b"], ["a__2", "id", "a.c"], ["id", "a.c"]]


def test_a_state_of_another_form_is_refused() -> None:
    codec = codec_of(seen(TWO, 1))
    for state in (b"\x02" + bytes(16), b"\x01" + bytes(3), b"\x01" + bytes(16)):
        rows = pa.RecordBatch.from_pylist([{"state": state}], LIVE_ROW_SCHEMA)
        with pytest.raises(CorruptInput):
            codec.project(rows)


def test_a_mirror_tracks_columns_by_id_and_not_by_name() -> None:
    first = fields({"id": "bigint", "a": "int", "c": "decimal(6,2)"})
    second = fields({"id": "bigint", "b": "int", "c": "decimal(6,3)", "n": "int", "w": "varchar(5)"})
    records = [seen(first, 1)]
    memory = codec_of(*records).remember()
    assert codec_of(*records, memory=memory).drift == Drift(exact=True)
    assert codec_of(*records, memory=memory).rows_to_rewrite == ""
    assert codec_of(*records, memory=memory).reserve(memory) is None
    records += [
        ran("alter table t change a b int, modify c decimal(6,3), add n int, add w varchar(5)", 3),
        seen(second, 4),
    ]
    later = codec_of(*records, memory=json.loads(json.dumps(memory)))
    assert later.drift == Drift(replaced=frozenset({"c"}), exact=True)
    assert later.rows_to_rewrite == "true"
    reserved = later.reserve(later.memory)
    assert reserved is not None
    # Fitted, but not merged: the mirror's new columns are empty until all rows are rewritten.
    again = codec_of(*records, memory=json.loads(json.dumps(reserved)))
    assert again.rows_to_rewrite == "true"
    assert again.reserve(again.memory) is None
    back = codec_of(records[0], memory=json.loads(json.dumps(reserved)))
    assert back.rows_to_rewrite == "true"
    assert codec_of(*records, memory=again.remember()).rows_to_rewrite == ""


def test_a_new_column_without_values_in_older_rows_leaves_a_mirrors_rows_alone() -> None:
    later = fields({"id": "bigint", "v": "varchar(300)", "n": "int"})
    records = [seen(TWO, 1), ran("alter table t add n int, modify v varchar(300)", 2), seen(later, 3)]
    memory = codec_of(records[0]).remember()
    assert codec_of(*records, memory=memory).rows_to_rewrite == ""
    assert codec_of(*records, memory=memory).drift.replaced == frozenset()
    with_default = [
        records[0],
        ran("alter table t add n int default 1, modify v varchar(300)", 2),
        records[2],
    ]
    assert codec_of(*with_default, memory=memory).rows_to_rewrite == "true"


def test_a_column_that_was_added_and_dropped_is_not_projected() -> None:
    wider = fields({"id": "bigint", "v": "varchar(20)", "n": "int"})
    records = [
        seen(TWO, 1),
        ran("alter table t add n int", 3),
        seen(wider, 4),
        ran("alter table t drop n", 6),
        ran("alter table t drop n", 2, "80-"),
    ]
    codec = codec_of(*records)
    assert codec.mirror_schema().names == ["id", "v", "_rest"]
    assert codec.history.due is None
    rows = [
        changed(TWO, change(None, ["1", "a"]), 2),
        changed(wider, change(None, ["2", "b", "5"]), 5),
        changed(TWO, change(None, ["3", "c"]), 7),
    ]
    found = sorted(projected(codec, rows), key=lambda row: row["id"])
    assert [(row["id"], row["v"]) for row in found] == [(1, "a"), (2, "b"), (3, "c")]
    memory = codec_of(*records[:3]).remember()
    assert codec_of(*records, memory=memory).rows_to_rewrite == ""


def test_a_column_that_was_dropped_and_added_again_requires_a_snapshot() -> None:
    narrower = fields({"id": "bigint"})
    records = [
        seen(TWO, 1),
        ran("alter table t drop v", 3),
        seen(narrower, 4),
        ran("alter table t add v varchar(20)", 6),
    ]
    history = codec_of(*records).history
    assert history.column_ids == ("id", "v#2")
    assert history.due is not None
    assert "was dropped and added again" in history.due.reason
