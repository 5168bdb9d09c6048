"""Records that can't be built are quarantined one by one, and all others are built as without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.encoder import ConverterName, Converters, text_of, to_lines
from airflow_cdc_provider.events.framing import Registrar, TopicSchema
from airflow_cdc_provider.events.transforms.chain import Chain, some_rows
from airflow_cdc_provider.events.transforms.faults import encode_with_faults
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, SchemaRejected
from tests.unit.events.transforms.changed_rows import change, piece

TO_NUMBERS = Chain(
    read_transforms(
        [{"type": "unwrap", "deletes": "rewrite"}, {"type": "cast", "fields": {"email": "int32"}}]
    )
)


def made(
    pieces: Sequence[Piece],
    converter: ConverterName = "json",
    *,
    dead_letters: bool = True,
    rejected_schemas: bool = True,
    registrar: Registrar | None = None,
    chain: Chain = TO_NUMBERS,
) -> pa.RecordBatch:
    return encode_with_faults(
        pieces,
        lambda some, converters: encode_pieces(chain.apply(some), converters),
        Converters(converter, converter, registrar=registrar),
        dead_letters=dead_letters,
        rejected_schemas=rejected_schemas,
        keeps_keys=True,
    )


def key_of(converter: ConverterName) -> str | bytes:
    return '{"id":2}' if converter == "string" else b'{"id":2}'


def shown(records: pa.RecordBatch) -> list[tuple[int, Any]]:
    return [
        (one["row"] // 10, "fault" if one["fault"] else json.loads(one["value"])["email"])
        for one in records.to_pylist()
    ]


def test_one_bad_record_takes_no_other_with_it() -> None:
    emails = ["1", "2", "no number", None, "5", "nor this", "7"]
    records = made([piece([change(n, "c", email) for n, email in enumerate(emails)])])
    assert shown(records) == [(0, 1), (1, 2), (2, "fault"), (3, None), (4, 5), (5, "fault"), (6, 7)]
    bad = records.to_pylist()[2]
    assert (bad["topic"], bad["key"], bad["value"], bad["headers"]) == (
        "shop.t",
        '{"id":2}',
        None,
        "",
    ), "what the failed transform and those after it would have removed"
    assert bad["fault"] == (
        "[CDC-CONFIGURATION] a text can't be cast to int32 (publish.transforms[1], type cast, topic shop.t). "
        "select records with when, or don't cast the field"
    )


def test_printed_records_have_the_reason_why_they_cannot_be_sent() -> None:
    sound, bad = text_of(to_lines(made([piece([change(1, "c", "1"), change(2, "c", "x")])]), ())).splitlines()
    assert "fault" not in json.loads(sound)
    assert "cast to int32" in json.loads(bad)["fault"]


def test_a_delete_that_cannot_be_made_has_no_tombstone_either() -> None:
    records = made([piece([change(1, "d", "no number"), change(2, "c", "2")])])
    assert shown(records) == [(0, "fault"), (1, 2)]


@pytest.mark.parametrize("converter", ["avro", "protobuf", "json_schema", "string"])
def test_what_cannot_be_made_has_the_columns_of_the_converter(converter: ConverterName) -> None:
    records = made([piece([change(1, "c", "1"), change(2, "c", "x")])], converter)
    bad = records.to_pylist()[1]
    assert (bad["row"], bad["key"], bad["value"]) == (10, key_of(converter), None)
    assert records.schema == Converters(converter, converter).record_schema


@given(st.lists(st.sampled_from(["1", "2", "x", None]), max_size=30))
def test_records_are_those_that_each_row_gives_alone(emails: list[str | None]) -> None:
    whole = piece([change(n, "d" if n % 3 else "c", email) for n, email in enumerate(emails)])
    alone = [
        row
        for n in range(len(emails))
        for row in made([some_rows(whole, pa.array([n]).to_numpy())]).to_pylist()
    ]
    assert made([whole] if emails else []).to_pylist() == alone


def test_a_table_that_cannot_be_built_stops_no_other_however_many_its_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = [change(n, "c", "x") for n in range(2500)]
    assert [what for _, what in shown(made([piece(bad)]))] == ["fault"] * 2500
    counts = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert counts == ["1000", "2000"], "the log says that it takes long"


@pytest.mark.parametrize("converter", ["json", "avro"])
def test_without_dead_letters_the_first_bad_record_is_named_by_topic_and_key(
    converter: ConverterName,
) -> None:
    some = [change(1, "c", "1"), change(2, "c", "x"), change(3, "c", "y")]
    with pytest.raises(ConfigurationError, match=r'cast to int32.* of topic shop\.t with key \{"id":2\}'):
        made([piece(some)], converter, dead_letters=False)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.sampled_from(
        [ConfigurationError, CorruptInput, ValueError, OverflowError, pa.ArrowNotImplementedError]
    ),
)
def test_whatever_error_a_record_causes_all_others_are_built(
    values: list[int], kind: type[Exception]
) -> None:
    def encode(some: Sequence[Piece], converters: Converters) -> pa.RecordBatch:
        records = encode_pieces(some, converters)
        if any('"email":"0"' in (value or "") for value in records["value"].to_pylist()):
            raise kind("no")
        return records

    pieces = [piece([change(n, "c", str(value)) for n, value in enumerate(values)])]
    found = encode_with_faults(pieces, encode, Converters(), dead_letters=True, rejected_schemas=True)
    records = found.to_pylist()
    assert [one["fault"] is not None for one in records] == [value == 0 for value in values]


@dataclass
class Refusing:
    """A registry that rejects the values' schemas of a topic, or fails."""

    error: type[ConfigurationError] = SchemaRejected
    topic: str = "shop.t"

    def schema_id(self, schema: TopicSchema) -> int:
        if schema.topic == self.topic and schema.side == "value":
            raise self.error(f"no schema of {schema.topic} is taken")
        return 7


def test_records_of_a_rejected_schema_are_faulty_and_as_many_as_without_the_rejection() -> None:
    rows = [change(1, "c", "1"), change(2, "d", "2"), change(3, "c", "no number")]
    accepted = made([piece(rows)], "avro", registrar=Refusing(topic="")).to_pylist()
    rejected = made([piece(rows)], "avro", registrar=Refusing()).to_pylist()
    assert [(one["row"], one["topic"], one["headers"]) for one in rejected] == [
        (one["row"], one["topic"], one["headers"]) for one in accepted
    ]
    reasons = ["[CDC-SCHEMA-REJECTED] no schema of shop.t is taken"] * (len(rejected) - 1)
    assert [one["fault"] for one in rejected[:-1]] == reasons
    assert "cast to int32" in rejected[-1]["fault"]
    assert (json.loads(rejected[0]["key"]), json.loads(rejected[0]["value"])["email"]) == ({"id": 1}, 1)


def test_topics_whose_schemas_are_accepted_are_encoded_as_ever() -> None:
    other = replace(piece([change(4, "c", "4")]), rows=np.array([40]))
    other = replace(
        other,
        envelope=replace(
            other.envelope,
            destinations=[replace(one, topic="shop.other") for one in other.envelope.destinations],
        ),
    )
    both = made([piece([change(1, "c", "1")]), other], "avro", registrar=Refusing()).to_pylist()
    alone = made([other], "avro", registrar=Refusing()).to_pylist()
    assert [one["fault"] is not None for one in both] == [True, False]
    assert both[1:] == alone


@pytest.mark.parametrize(
    ("error", "dead_letters"), [(ConfigurationError, True), (SchemaRejected, False)], ids=["registry", "fail"]
)
def test_an_unusable_registry_and_without_dead_letters_a_rejection_end_the_run(
    error: type[ConfigurationError], dead_letters: bool
) -> None:
    with pytest.raises(error, match=r"no schema of shop\.t is taken"):
        made(
            [piece([change(1, "c", "1")])],
            "avro",
            registrar=Refusing(error),
            dead_letters=dead_letters,
            rejected_schemas=dead_letters,
        )


def test_a_table_whose_types_cannot_be_encoded_is_found_without_trying_each_record() -> None:
    nested = piece([change(n, "c", "1") for n in range(64)])
    tried: list[int] = []

    def encode(some: Sequence[Piece], converters: Converters) -> pa.RecordBatch:
        tried.append(sum(len(one.rows) for one in some))
        raise ValueError("overflow")

    found = encode_with_faults(
        [nested], encode, Converters("protobuf", "protobuf"), dead_letters=True, rejected_schemas=True
    )
    assert tried == [64, 0, 64], "and in JSON, for the dead letters"
    assert found["row"].to_pylist() == nested.rows.tolist()
    (reason,) = set(found["fault"].to_pylist())
    assert reason.endswith("ValueError: overflow")
