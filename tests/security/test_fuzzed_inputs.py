"""Inputs that a fuzzer found (``make fuzz``): each is small, and each stopped a run or took too much."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import CorruptInput, SchemaUnknown
from airflow_cdc_provider.signals.signal import MalformedSignal
from airflow_cdc_provider.sources.cassandra.capture import LogFolder
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.commit_log.tables import log_tables
from airflow_cdc_provider.sources.cql.driver.raw_results import RawPage
from airflow_cdc_provider.sources.cql.snapshot import compile_select, page_records
from airflow_cdc_provider.sources.cql.types import parse_java_type, parse_type
from airflow_cdc_provider.sources.debezium.avro_program import compile_avro
from airflow_cdc_provider.sources.mongodb.signal_documents import parse_signals
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder
from airflow_cdc_provider.sources.scylla.events.tables import event_table
from airflow_cdc_provider.sources.scylla.log_pages import MalformedPage, page_changes
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.ddl import Unknown, read_statement
from airflow_cdc_provider.sources.vitess.fields import ColumnType
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.protocol import VGtid, parse
from airflow_cdc_provider.sources.vitess.recordings import read_recording
from airflow_cdc_provider.sources.vitess.wire import BEGIN, COMMIT, BrokenMessage
from server_kit.scylla.values import pack_elements, pack_pairs
from tests.bounded import bounded
from tests.oracles.cassandra_read_path import Liveness, Row
from tests.unit.server_kit.scylla.item import ITEM, THINGS, i, t
from tests.unit.sources.cassandra.commit_logs import (
    EPOCH_US,
    UpdateWriter,
    join_clustering,
    mutation,
    put_segment,
    segment,
)
from tests.unit.sources.cassandra.recordings import read_all
from tests.unit.sources.cassandra.updates import SHUFFLED
from tests.unit.sources.debezium.debezium_messages import Table, column, event, framed
from tests.unit.sources.scylla.log_rows import rows as log_rows
from tests.unit.sources.scylla.logged import (
    change_record,
    changes,
    codec_of,
    payloads,
    schema_payload,
    table_schema,
)
from tests.unit.sources.vitess.fake_vtgate import event as vitess_event
from tests.unit.sources.vitess.fake_vtgate import gtid, journal, response, transaction, vgtid

SERVER = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
NOW_US = 1_800_000_000_000_000


@pytest.mark.parametrize("members", [{}, {"fullDocument": {}}, {"fullDocument": None}, {"fullDocument": 1}])
def test_an_insert_without_a_document_is_no_valid_signal(members: dict[str, Any]) -> None:
    (found,) = parse_signals([bson.encode({"operationType": "insert", **members})])
    assert isinstance(found, MalformedSignal)


def assembled(*responses: bytes) -> tuple[Position, int]:
    """Return the position after responses, and how many were broken."""
    start = Position({f"shop/{s}": ShardPosition(gtid(n), 1) for s, n in (("-80", 10), ("80-", 20))})
    assembler = TransactionAssembler(
        start, bool, lambda *_: False, slice_bytes=1000, keep_empty=True, stops_at_journals=True
    )
    broken = 0
    for one in responses:
        try:
            assembler.add(one, NOW_US)
        except BrokenMessage:
            broken += 1
    return assembler.position, broken


@pytest.mark.parametrize(
    "shards",
    [
        {},
        {"-80": 11, "80-": ""},
        {"-80": 11, "80-": "nonsense"},
        {"-80": 11, "80-c0": "nonsense", "c0-": 20},
        {"-80": 11, "80-": 20, "": 5},
        {"-80": f"MySQL56/{SERVER}:1-18446744073709551616", "80-": 20},
        {"-80": f"MySQL56/{SERVER}:1-{'9' * 5000}", "80-": 20},
    ],
)
def test_no_position_is_stored_that_the_next_run_could_not_read(shards: dict[str, int | str]) -> None:
    with pytest.raises(CorruptInput):
        assembled(response(*transaction("-80", shards)))


def test_all_unreadable_messages_of_a_recording_are_skipped_whatever_their_faults() -> None:
    unnamed = response(vitess_event("BEGIN", "-80")).replace(b"shop", b"sh\xfbp")
    assert b"\xfb" in unnamed
    messages = [
        response(vitess_event("BEGIN")),
        unnamed,
        b"\xff\xff",
        response(vitess_event("COMMIT")),
        unnamed,
    ]
    found = read_recording(b"".join(bytes([len(one)]) + one for one in messages))
    assert found.events.types.tolist() == [BEGIN, COMMIT]
    assert len(found.broken) == 3


@pytest.mark.parametrize(
    "text", ["RENAME TABLE a TO `", "RENAME TABLE `a TO b", "ALTER TABLE `a", "ALTER TABLE `"]
)
def test_a_statement_with_an_open_quote_changes_a_table(text: str) -> None:
    assert all(one.kind == "alter" for one in read_statement(text))
    assert read_statement(text)


def test_a_stream_that_began_at_the_current_position_keeps_it_until_there_is_another() -> None:
    start = ShardPosition("current")
    assert start.moved("") == start


def test_a_journal_of_an_unknown_shard_is_no_reshard_of_the_stream() -> None:
    events = [
        journal("c0-", ["c0-"], {"c0-d0": 1}),
        *transaction("c0-", {"-80": 11, "80-": 20}),
    ]
    position, broken = assembled(response(*events))
    assert (sorted(position.shards), broken) == (["shop/-80", "shop/80-"], 0)
    assert Position.from_offset(position.to_offset()) == position


def test_messages_that_are_none_are_corrupt_input_wherever_they_are_parsed() -> None:
    broken = vgtid({"-80": 1}).SerializeToString().replace(b"MySQL56", b"\xff\xffSQL56")
    with pytest.raises(CorruptInput, match=r"binlogdata\.VGtid"):
        parse(VGtid, broken)
    _, count = assembled(
        response(vitess_event("VGTID", "-80", vgtid=vgtid({"-80": 1}))).replace(b"SQL", b"\xff\xffL")
    )
    assert count == 1


def test_a_set_with_many_gaps_is_read_and_compared_in_time() -> None:
    text = f"MySQL56/{SERVER}:" + ":".join(str(2 * number + 1) for number in range(50_000))
    with bounded(seconds=1):
        found = GtidSet.parse(text)
        assert found.contains(found)


@pytest.mark.parametrize(
    "text",
    [
        "alter table t add c int default " + "(" * 20_000,
        "alter table t {" + "{" * 20_000,
        "alter table t add c int default " + "case when " * 5_000,
        "alter table t add x " + "/*!9" * 20_000,
        "alter table t add c varchar(9) default '" + "\\'" * 20_000,
        "rename table t to u" + " . a" * 20_000,
        'alter table t comment "' + '\\"' * 20_001,
    ],
)
def test_a_statement_that_no_parser_can_take_is_unknown_in_time(text: str) -> None:
    read_statement("alter table warm add c int")
    with bounded(seconds=2):
        found = read_statement(text)
    assert found
    assert found[0].table == "t"
    assert any(isinstance(action, Unknown) for one in found for action in one.actions)


@pytest.mark.parametrize("sizes", ["9" * 5000, "²", "٣,²", "-1", " "])
def test_sizes_of_a_type_that_are_no_numbers_are_none(sizes: str) -> None:
    assert ColumnType.parse(f"int({sizes})").sizes == ()
    assert ColumnType.parse("decimal( 9 , 2 )").sizes == (9, 2)


@pytest.mark.parametrize("rows", [1 << 20, (1 << 32) - 1])
def test_a_page_of_few_bytes_has_few_rows(rows: int) -> None:
    data = b"\xff\xff\xff\xff" * 40
    program = compile_select(table_schema(ITEM), elements_have_times=True)
    with bounded(seconds=1):
        with pytest.raises(MalformedPage):
            page_changes(data, rows, 8, more=False)
        with pytest.raises(CorruptInput):
            page_records(program, data, rows, NOW_US, "shop.item")
        with pytest.raises(CorruptInput):
            RawPage(data, rows).values(2)


@pytest.mark.parametrize("number", [None, b"", b"\0", bytes(8)])
def test_a_log_row_without_its_number_is_reported_for_its_change_alone(number: bytes | None) -> None:
    sound = change_record(ITEM, log_rows({"op": 2, "sku": i(1), "name": t("tea")}, key="shop"))
    given = [dict(row) for row in log_rows({"op": 2, "sku": i(1), "name": t("tea")}, key="shop")]
    given[0]["cdc$batch_seq_no"] = number
    decoder = EventDecoder(event_table(schema_payload(ITEM)), "my")
    found = decoder.decode(payloads([sound, change_record(ITEM, given), sound]))
    assert set(found.undecodable) == {1}
    assert found.events["row"].to_pylist() == [0, 2]


@pytest.mark.parametrize(
    "text",
    [
        "list<" * 50_000 + "int" + ">" * 50_000,
        "frozen<" * 100 + "int" + ">" * 100,
        f"vector<float, {'9' * 5000}>",
        "vector<float, ²>",
    ],
)
def test_a_type_that_is_none_is_unknown(text: str) -> None:
    with bounded(seconds=1), pytest.raises(SchemaUnknown):
        parse_type(text)


@pytest.mark.parametrize(
    "text",
    ["ListType(" * 20_000, "VectorType(Int32Type , x)", "UserType(k,zz,61:Int32Type)", "UserType(k,ff)"],
)
def test_a_java_type_that_is_none_is_unknown(text: str) -> None:
    prefix = "org.apache.cassandra.db.marshal."
    with bounded(seconds=1), pytest.raises(SchemaUnknown):
        parse_java_type(
            text.replace("ListType", f"{prefix}ListType")
            .replace("Vector", f"{prefix}Vector")
            .replace("User", f"{prefix}User")
        )


@pytest.mark.parametrize("logical", ["io.debezium.time.MicroTime", "org.apache.kafka.connect.data.Time"])
@pytest.mark.parametrize("kind", ["array", "string", "struct", "float", "bytes", "map"])
def test_a_time_of_a_type_that_no_time_has_is_shown_as_that_type(logical: str, kind: str) -> None:
    inner = {"type": "int32", "optional": True}
    field: dict[str, Any] = column("v", kind, logical)
    field |= {
        "items": inner,
        "keys": {"type": "string"},
        "values": inner,
        "fields": [{**inner, "field": "a"}],
    }
    value = {"array": [1], "string": "x", "struct": {"a": 1}, "float": 1.5, "bytes": "AQ==", "map": {"k": 1}}[
        kind
    ]
    table = Table()
    shown = table.take(({"id": 1}, framed(event("c", None, {"v": value}), [field])))
    shown.validate(full=True)
    assert table.skipped == Counter()
    assert shown.num_rows == 1
    assert shown["v"][0].is_valid


def test_a_schema_of_many_fields_is_read_in_time() -> None:
    fields = [column(f"f{number}", "int32") for number in range(4000)]
    Table().take(({"id": 1}, framed(event("c", None, {"f1": 1}), fields[:5])))
    with bounded(seconds=3, mebibytes=256):
        shown = Table().take(({"id": 1}, framed(event("c", None, {"f1": 1}), fields)))
    assert shown.num_columns > len(fields)


@pytest.mark.parametrize("size", [-1, 1 << 31, 1 << 70, 2.5, "3", None])
def test_a_fixed_type_of_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        compile_avro(json.dumps({"type": "fixed", "name": "f", "size": size}))


def test_a_change_of_many_rows_takes_memory_by_its_size() -> None:
    decode = codec_of(ITEM).decode
    few, many = (
        changes([change_record(ITEM, log_rows(*rows, key="shop"))])
        for rows in ([{"op": 3, "sku": i(n)} for n in range(count)] for count in (2, 5_000))
    )
    decode(few, [])
    with bounded(seconds=1, mebibytes=64):
        found = decode(many, [])
    assert (found.contributions.num_rows, found.undecodable) == (5_000, [])


def test_a_collection_of_many_elements_takes_memory_by_its_size() -> None:
    decode = codec_of(THINGS).decode
    few, many = (
        changes([change_record(THINGS, log_rows({"op": 2, "part": i(1), "tags": elements}, key="id"))])
        for elements in (pack_elements([t(f"{n:05}") for n in range(count)]) for count in (2, 20_000))
    )
    decode(few, [])
    with bounded(seconds=1, mebibytes=64):
        found = decode(many, [])
    assert (found.contributions.num_rows, found.undecodable) == (1, [])


@pytest.mark.parametrize("number", [-1, 2, 4096])
def test_a_removed_field_that_a_type_does_not_have_is_an_error_of_its_column(number: int) -> None:
    removed = pack_elements([number.to_bytes(2, "big", signed=True)])
    row = {"op": 1, "part": i(1), "cdc$deleted_elements_addr": removed}
    record = change_record(THINGS, log_rows(row, key="id"))
    decoder = EventDecoder(event_table(schema_payload(THINGS)), "my.shop")
    with pytest.raises(CorruptInput, match=rf"column cdc\$deleted_elements_addr of its log.*found {number}"):
        decoder.decode(pa.array([record["payload"]], pa.binary()))


@pytest.mark.parametrize("sizes", [(20, 16, 16), (12, 20), (0,)])
def test_ids_of_list_cells_that_are_no_uuids_are_an_error_of_their_column(sizes: tuple[int, ...]) -> None:
    cells = pack_pairs([(bytes([number] * size), i(1)) for number, size in enumerate(sizes)])
    record = change_record(THINGS, log_rows({"op": 1, "part": i(1), "log": cells}, key="id"))
    decoder = EventDecoder(event_table(schema_payload(THINGS)), "my.shop")
    with pytest.raises(CorruptInput, match=rf"column log of its log.*expected 16 bytes, found {sizes[0]}"):
        decoder.decode(pa.array([record["payload"]], pa.binary()))


def test_a_mutation_of_many_rows_takes_memory_by_its_size(tmp_path: Path) -> None:
    schema = replace(SHUFFLED, keyspace="ks")
    clustered = [Row(Liveness(EPOCH_US), None, join_clustering([i(n)])) for n in range(20_000)]
    write = UpdateWriter(schema).write
    other = write(b"\0\0\0\2", clustered[:1])
    tables = log_tables([schema], {schema.full_name})

    def read(count: int) -> pa.RecordBatch:
        mutated = mutation(write(b"\0\0\0\1", clustered[:count]), other)
        put_segment(tmp_path / str(count), 1, segment(1, [[mutated]]))
        records, _ = read_all(LogFolder(str(tmp_path / str(count)), "host"), tables)
        (batch,) = records.combine_chunks().to_batches()
        return CassandraCodec(schema).decode(batch, ()).contributions

    read(2)
    with bounded(seconds=2, mebibytes=128):
        assert read(len(clustered)).num_rows == len(clustered) + 1


def test_a_recording_of_many_broken_messages_is_read_in_time() -> None:
    read_recording(b"\x01\x0b")
    with bounded(seconds=2):
        found = read_recording(b"\x01\x0b" * 4000 + b"\x02\x0a\0")
    assert (len(found.broken), len(found.events)) == (4000, 1)


@pytest.mark.parametrize("where", ["row", "struct"])
def test_many_names_that_differ_only_by_case_get_their_columns_in_time(where: str) -> None:
    letters = [(letter, letter.upper()) for letter in "abcdefghijk"]
    fields = [column("".join(name), "int32") for name in product(*letters)]
    inside = [{**column("s", "struct"), "fields": fields}] if where == "struct" else fields
    Table().take(({"id": 1}, framed(event("c", None, {"id": 1}), inside[:1])))
    with bounded(seconds=3, mebibytes=256):
        shown = Table().take(({"id": 1}, framed(event("c", None, {"id": 1}), inside)))
    assert len({name.lower() for name in shown.schema.names}) == shown.num_columns >= len(inside)


def test_a_set_with_a_domain_without_transactions_is_united_with_others() -> None:
    united = GtidSet.parse("MariaDB/0-1-3").union(GtidSet.parse("MariaDB/1-2-0"))
    assert str(united) == "MariaDB/0-1-3,1-2-0"
