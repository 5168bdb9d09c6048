from __future__ import annotations

from typing import Any

import bson
import numpy as np
import pytest
from bson import Decimal128, Int64, ObjectId
from hypothesis import given

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.bson import as_bytes, find_in_all
from airflow_cdc_provider.sources.mongodb.decoding.identity import canonical_keys
from airflow_cdc_provider.sources.mongodb.reread import id_of_key
from tests.unit.sources.mongodb.documents import VALUES


def key_of(document: bytes) -> bytes:
    data = as_bytes(document)
    places = find_in_all(data, np.array([0]), np.array([len(document)]), b"_id")
    return canonical_keys(data, *places)[0].tobytes()


@given(VALUES)
def test_a_key_gives_an_id_that_has_this_key(identity: Any) -> None:
    key = key_of(bson.encode({"_id": identity}))
    assert key_of(id_of_key(key)) == key


@pytest.mark.parametrize(
    "identity", [1.5, "text", ObjectId(), {"a": 0.5, "b": [True, None]}, Int64(2**60 + 1), Decimal128("0.1")]
)
def test_most_ids_come_back_as_they_are(identity: Any) -> None:
    document = bson.encode({"_id": identity})
    assert id_of_key(key_of(document)) == document


@pytest.mark.parametrize("key", [b"\x02\xff", b"\x07" + bytes(13), b"\x55"])
def test_what_is_no_key_is_refused(key: bytes) -> None:
    with pytest.raises(CorruptInput):
        id_of_key(key)
