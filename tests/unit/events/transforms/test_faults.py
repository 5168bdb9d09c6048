"""Records that can't be built are quarantined one by one, and all others are built as without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.encoder import ConverterName, Converters, text_of, to_lines
from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.events.transforms import faults
from airflow_cdc_provider.events.transforms.chain import Chain, some_rows
from airflow_cdc_provider.events.transforms.faults import RecordingRegistrar, encode_with_faults
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from tests.unit.events.transforms.changed_rows import change, piece

TO_NUMBERS = Chain(
    read_transforms(
        [{"type": "unwrap", "deletes": "rewrite"}, {"type": "cast", "fields": {"email": "int32"}}]
    )
)


def made(
    pieces: Sequence[Piece], converter: ConverterName = "json", most: int = faults.MAX_FAULTS
) -> pa.RecordBatch:
    converters = Converters(converter, converter)
    return encode_with_faults(
        pieces, lambda some: encode_pieces(TO_NUMBERS.apply(some), converters), converters, most=most
    )


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
    assert json.loads(bad["value"]) == change(2, "c", "no number"), "as it was before all transforms"
    assert (bad["topic"], json.loads(bad["key"]), bad["headers"]) == ("shop.t", {"id": 2}, '["n","2"]')
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
def test_what_cannot_be_made_is_json_whatever_the_converter(converter: ConverterName) -> None:
    records = made([piece([change(1, "c", "1"), change(2, "c", "x")])], converter)
    bad = records.to_pylist()[1]
    assert json.loads(bad["value"]) == change(2, "c", "x")
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


def test_with_very_many_the_declaration_is_wrong() -> None:
    bad = [change(n, "c", "x") for n in range(4)]
    assert [what for _, what in shown(made([piece(bad[:3])], most=3))] == ["fault"] * 3
    with pytest.raises(ConfigurationError, match="cast to int32"):
        made([piece(bad)], most=3)


@pytest.mark.parametrize("converter", ["json", "avro"])
def test_without_dead_letters_the_first_bad_record_is_named_by_topic_and_key(
    converter: ConverterName,
) -> None:
    some = [change(1, "c", "1"), change(2, "c", "x"), change(3, "c", "y")]
    with pytest.raises(ConfigurationError, match=r'cast to int32.* of topic shop\.t with key \{"id":2\}'):
        made([piece(some)], converter, most=0)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.sampled_from(
        [ConfigurationError, CorruptInput, ValueError, OverflowError, pa.ArrowNotImplementedError]
    ),
)
def test_whatever_error_a_record_causes_all_others_are_built(
    values: list[int], kind: type[Exception]
) -> None:
    def encode(some: Sequence[Piece]) -> pa.RecordBatch:
        records = encode_pieces(some, Converters())
        if any('"email":"0"' in (value or "") for value in records["value"].to_pylist()):
            raise kind("no")
        return records

    pieces = [piece([change(n, "c", str(value)) for n, value in enumerate(values)])]
    records = encode_with_faults(pieces, encode, Converters()).to_pylist()
    assert [one["fault"] is not None for one in records] == [value == 0 for value in values]


class Refusing:
    """A registry that takes no schema."""

    def schema_id(self, schema: TopicSchema) -> int:
        raise ConfigurationError(f"no schema of {schema.topic} is taken")


def test_what_a_registry_refuses_is_no_fault_of_a_record() -> None:
    registrar = RecordingRegistrar(Refusing())
    converters = Converters("avro", "avro", registrar=registrar)
    with pytest.raises(ConfigurationError, match=r"no schema of shop\.t is taken"):
        encode_with_faults(
            [piece([change(1, "c", "1")])],
            lambda some: encode_pieces(some, converters),
            converters,
            registrar,
        )
