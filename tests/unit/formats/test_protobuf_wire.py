from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.protobuf_wire import (
    FAULTS,
    NO_NUMBER,
    OUTSIDE,
    TOO_LONG,
    TRUNCATED,
    WIRE_TYPE,
    message,
    next_field,
    read_message,
    read_varint,
    unzigzag,
    varint,
    write_varint,
)

VALUES = st.integers(0, 2**64 - 1) | st.binary(max_size=300)


@given(st.integers(0, 2**64 - 1))
def test_varints_are_those_of_googles_library(number: int) -> None:
    written = varint(number)
    assert _DecodeVarint(written, 0) == (number, len(written))
    out = np.zeros(10, np.uint8)
    assert out[: write_varint(np.uint64(number), out, 0)].tobytes() == written
    value, after = read_varint(np.frombuffer(written, np.uint8), 0, len(written))
    assert (value % 2**64, after) == (number, len(written))


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_numbers_are_signed(number: int) -> None:
    encoded = (number << 1) ^ (number >> 63)
    assert unzigzag(np.uint64(encoded).astype(np.int64)) == number


@given(st.dictionaries(st.integers(1, 40), VALUES))
def test_a_written_message_reads_back(fields: dict[int, int | bytes]) -> None:
    assert read_message(message(fields)) == fields


@given(st.binary(max_size=60))
def test_invalid_bytes_end_in_a_value_error_or_nothing(data: bytes) -> None:
    try:
        read_message(data)
    except ValueError as error:
        assert str(error) in FAULTS


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x08", TRUNCATED),
        (b"\x08" + b"\xff" * 9 + b"\x02", TOO_LONG),
        (b"\x0a\x02x", OUTSIDE),
        (b"\x09" + bytes(7), OUTSIDE),
        (b"\x0d" + bytes(3), OUTSIDE),
        (b"\x00\x00", NO_NUMBER),
        (b"\x88\x80\x80\x80\x80\x00\x00", NO_NUMBER),
        (b"\x0b", WIRE_TYPE),
    ],
)
def test_an_invalid_field_is_reported(data: bytes, fault: int) -> None:
    assert next_field(np.frombuffer(data, np.uint8), 0, len(data))[0] == -fault
