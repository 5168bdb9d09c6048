from __future__ import annotations

import base64

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.formats.base64_text import base64_texts


@given(st.lists(st.none() | st.binary(max_size=9), max_size=6))
def test_bytes_are_encoded_as_python_encodes_them(values: list[bytes | None]) -> None:
    spans = binary_buffer(pa.array(values, pa.binary()))
    plain = [v if v is None else base64.b64encode(v).decode() for v in values]
    safe = [v if v is None else base64.urlsafe_b64encode(v).decode() for v in values]

    assert base64_texts(*spans).to_pylist() == plain
    assert base64_texts(*spans, url_safe=True).to_pylist() == safe
    assert base64_texts(*spans, quoted=True).to_pylist() == [v if v is None else f'"{v}"' for v in plain]
