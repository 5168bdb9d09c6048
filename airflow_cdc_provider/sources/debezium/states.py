"""The state of a row, and unavailable values in it.

A state::

    u8 form, 1 | 16 bytes: name of the schema, zeros for none | the row as a JSON object
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, without_first_bytes
from airflow_cdc_provider.formats.json_text import NULL
from airflow_cdc_provider.formats.kernels import Flags, Ints
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA
from airflow_cdc_provider.sources.debezium.json_members import (
    Members,
    ValueSpans,
    members_of,
    read_values,
    spelled,
)

NAME_BYTES: Final = 16
HEAD_BYTES: Final = 1 + NAME_BYTES

_FORM: Final = b"\x01"


def write_states(names: pa.Array, rows: pa.Array) -> pa.Array:
    """Encode states.

    Args:
        names: Schema name of each row (32 hexadecimal digits, or empty); strings.
        rows: JSON objects; binary.
    """
    distinct = pc.dictionary_encode(names.fill_null(NO_SCHEMA))
    heads = pa.array([_head(name) for name in distinct.dictionary.to_pylist()], pa.binary())
    return pc.binary_join_element_wise(heads.take(distinct.indices), rows, pa.scalar(b"", pa.binary()))


def read_states(states: pa.Array) -> tuple[list[tuple[str, Ints]], pa.Array]:
    """Decode states.

    Returns:
        The indexes of rows by schema name, and all rows as JSON.

    Raises:
        CorruptInput: A state is malformed.
    """
    if not len(states):
        return [], pa.array([], pa.binary())
    data, starts, ends = binary_buffer(states)
    if (ends - starts < HEAD_BYTES).any() or (data[starts] != _FORM[0]).any():
        raise CorruptInput(
            "a state of a row of Debezium's events has an unknown format",
            expected=f"{_FORM.hex()}, {NAME_BYTES} bytes and a JSON object",
            remedy="the mirror was written by a newer release of this package; use that one",
        )
    heads = pc.dictionary_encode(pc.binary_slice(states, 1, HEAD_BYTES))
    numbers = heads.indices.to_numpy(zero_copy_only=False)
    groups = [
        (head.hex() if any(head) else NO_SCHEMA, np.flatnonzero(numbers == number))
        for number, head in enumerate(heads.dictionary.to_pylist())
    ]
    return groups, without_first_bytes(states, HEAD_BYTES)


def _head(name: str) -> bytes:
    return _FORM + (bytes.fromhex(name) if name else bytes(NAME_BYTES))


def spellings(placeholder: str) -> tuple[bytes, ...]:
    """Return the spellings of an unavailable value by Debezium, which depend on the column type.

    These are text; bytes in base64 and hexadecimal; maps, as objects and as text; lists of text, bytes and
    UUIDs. Other lists have an element per byte: numbers, booleans, and decimals in all formats.
    """
    raw = placeholder.encode()
    digest = bytearray(hashlib.md5(raw, usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    plain = digest.hex()
    uuid = "-".join((plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:]))
    texts_of_bytes = [base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode(), raw.hex()]
    digits = [base64.b64encode(bytes([one])).decode() for one in raw]
    forms: list[Any] = [
        placeholder,
        *texts_of_bytes,
        [placeholder],
        *([one] for one in texts_of_bytes),
        list(raw),
        [uuid],
        {placeholder: placeholder},
        _text({placeholder: placeholder}),
        [float(one) for one in raw],
        [True] * len(raw),
        digits,
        [{"scale": 0, "value": one} for one in digits],
    ]
    return tuple(dict.fromkeys(_text(one).encode() for one in forms))


def _text(form: Any) -> str:
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False)


def rows_of(texts: pa.Array, placeholder: tuple[bytes, ...]) -> tuple[Members, Flags]:
    """Find the members of rows.

    Args:
        texts: JSON objects; binary.
        placeholder: From :func:`spellings`.

    Returns:
        The members, with unavailable values as null; and which members are unavailable.
    """
    data, values = read_values(texts)
    members = members_of(data, values)
    missing = spelled(data, members.values, placeholder)
    if missing.any():
        kinds = np.where(missing, NULL, members.values.kinds)
        members = Members(
            data,
            members.count,
            members.owners,
            members.names,
            ValueSpans(members.values.starts, members.values.ends, kinds),
        )
    return members, missing
