"""What a second reading of keys in doubt leaves in the changes table."""

from __future__ import annotations

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.jobs.doubts import _place


def test_settlements_are_of_the_table_that_was_read() -> None:
    """Without its id they would count for one of the same name that is made anew before they are merged."""
    nothing = pa.RecordBatch.from_pylist([], CHANGE_SCHEMA)
    row = {"origin": "node", "position": b"\x01", "schema_id": "ab" * 16}
    reading = pa.RecordBatch.from_pylist([row], CHANGE_SCHEMA)
    assert _place([nothing, reading]) == ("node", b"\x01", "ab" * 16)
    assert _place([nothing]) == ("", b"\xff" * 16, None)
