"""What reading unresolved keys again leaves in the changes table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs.merging import unresolved_keys
from airflow_cdc_provider.jobs.merging.unresolved_keys import _portions, _position_of


def test_settlements_are_of_the_table_that_was_read() -> None:
    """Without its id they would count for one of the same name that is re-created before they are merged."""
    nothing = pa.RecordBatch.from_pylist([], CHANGE_SCHEMA)
    row = {"origin": "node", "position": b"\x01", "schema_id": "ab" * 16}
    reading = pa.RecordBatch.from_pylist([row], CHANGE_SCHEMA)
    assert _position_of([nothing, reading]) == ("node", b"\x01", "ab" * 16)
    assert _position_of([nothing]) == ("", b"\xff" * 16, None)


def _batch(key: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": key, "payload": bytes(100)}], CHANGE_SCHEMA)


KEYS = [bytes([n]) for n in range(10)]


def test_portions_hold_whole_keys_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unresolved_keys, "_KEYS_AT_ONCE", 3)
    read = [_batch(KEYS[n]) for n in (1, 1, 2, 8, 8)]
    for most in (1, 10**6):
        monkeypatch.setattr(unresolved_keys, "_BYTES_AT_ONCE", most)
        found = list(_portions(iter(read), KEYS))
        assert [key for some, _ in found for key in some] == KEYS
        assert [batch for _, changes in found for batch in changes] == read
        assert max(len(some) for some, _ in found) <= 3
        for some, changes in found:
            assert {batch["key"][0].as_py() for batch in changes} <= set(some)


def test_a_key_that_cannot_be_read_leaves_those_before_it() -> None:
    def read() -> Iterator[pa.RecordBatch]:
        yield from (_batch(KEYS[n]) for n in (1, 3, 5, 5))
        raise TransientError("no answer")

    found = _portions(read(), KEYS)
    some, changes = next(found)
    assert some == KEYS[:5]
    assert [batch["key"][0].as_py() for batch in changes] == [KEYS[1], KEYS[3]]
    with pytest.raises(TransientError):
        next(found)
