"""What a mask or a transform hides gets into no dead letter, log or error."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from airflow_cdc_provider.events.encoder import ConverterName, Converters
from airflow_cdc_provider.events.transforms.chain import Chain
from airflow_cdc_provider.events.transforms.faults import encode_with_faults
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.exceptions import ConfigurationError
from tests.unit.events.transforms.changed_rows import change, piece

_SECRET = "s3cret'4711"
_UNWRAP = {"type": "unwrap"}
_MASK = {"type": "mask", "fields": ["email"]}
_CAST = {"type": "cast", "fields": {"email": "int32"}}
_KEY = {"type": "value_to_key", "fields": ["email"]}
_FILTER = {"type": "filter", "condition": "value.op <> 'd'"}


def records(transforms: Sequence[object], converter: ConverterName, *, dead_letters: bool) -> pa.RecordBatch:
    chain = Chain(read_transforms(list(transforms)))

    def encode(some: Sequence[Piece], converters: Converters) -> pa.RecordBatch:
        made = encode_pieces(chain.apply(some), converters)
        if converters.value != "json":  # as an encoder that quotes the value that it refuses
            for text in encode_pieces(some, Converters())["value"].to_pylist():
                if _SECRET in (text or ""):
                    raise pa.ArrowInvalid(f"Could not convert '{_SECRET}' with type str: 4711")
        return made

    return encode_with_faults(
        [piece([change(1, "c", "7"), change(2, "c", _SECRET), change(3, "d", _SECRET)])],
        encode,
        Converters(converter, converter),
        dead_letters=dead_letters,
        rejected_schemas=True,
        keeps_keys=_KEY not in transforms,
    )


@pytest.mark.parametrize("converter", ["json", "avro", "protobuf"])
@pytest.mark.parametrize(
    "transforms",
    [
        [_UNWRAP, _CAST],
        [_UNWRAP, _CAST, _KEY],
        [_UNWRAP, _CAST, _MASK],
        [_UNWRAP, _MASK],
        [_FILTER, _UNWRAP, _MASK],
    ],
)
def test_no_dead_letter_log_or_error_has_a_value_that_is_hidden(
    transforms: list[object], converter: ConverterName, caplog: pytest.LogCaptureFixture
) -> None:
    found = records(transforms, converter, dead_letters=True)
    texts = [json.dumps(found.to_pylist(), default=str), caplog.text]
    if any(found["fault"].to_pylist()):
        with pytest.raises(ConfigurationError) as raised:
            records(transforms, converter, dead_letters=False)
        assert raised.value.__cause__ is None
        texts.append(str(raised.value))
    assert not [text for text in texts if "s3cret" in text or "4711" in text]
    assert converter == "json" or any(found["fault"].to_pylist()), "the case is tested"


def test_what_only_the_converter_refuses_is_json_as_after_all_transforms() -> None:
    found = records([_UNWRAP, _MASK], "avro", dead_letters=True)
    (bad, *_) = [one for one in found.to_pylist() if one["fault"]]
    assert json.loads(bad["value"])["email"] == ""
    assert json.loads(bad["key"]) == {"id": 2}
