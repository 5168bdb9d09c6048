"""Read quarantined mutations again, when more of the schema is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.sources.cassandra.commit_log.framing import END, LENGTH, START
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables
from airflow_cdc_provider.sources.cassandra.payload import (
    MUTATION_HEADER_BYTES,
    MUTATION_TAG,
    Position,
    mutation_header,
)
from airflow_cdc_provider.sources.cassandra.records import ReadCounts, SegmentRecords


def retry_quarantined(rows: pa.RecordBatch, tables: LogTables) -> Iterator[pa.RecordBatch]:
    """Read quarantined mutations again, with the tables that are known now.

    Args:
        rows: Records of kind ``quarantine``.
        tables: The tables known now.

    Yields:
        Batches of ``CHANGE_SCHEMA`` as :mod:`.reader` would have yielded, with the same positions: changes,
        and records that are still unreadable. Records without a mutation are returned unchanged.
    """
    holds = pc.equal(pc.binary_slice(rows.column("payload"), 0, 1), bytes([MUTATION_TAG]))
    if not pc.all(holds).as_py():
        yield rows.filter(pc.invert(holds))
    mutations = [
        (origin, Position.unpack(position), payload)
        for origin, position, payload in zip(
            *(rows.column(name).to_pylist() for name in ("origin", "position", "payload")), strict=True
        )
        if payload[0] == MUTATION_TAG
    ]
    for origin, segment in sorted({(origin, position.segment) for origin, position, _ in mutations}):
        chosen = [(p, payload) for o, p, payload in mutations if (o, p.segment) == (origin, segment)]
        data, offsets, _ = binary_parts(pa.array([payload for _, payload in chosen], pa.binary()))
        headers = np.array([mutation_header(payload) for _, payload in chosen], np.int64)
        entries = np.empty((len(chosen), 3), np.int64)
        entries[:, START] = offsets[:-1] + MUTATION_HEADER_BYTES
        entries[:, LENGTH] = offsets[1:] - entries[:, START]
        entries[:, END] = [position.end for position, _ in chosen]
        reader = SegmentRecords(origin, segment, tables, strict=False, counts=ReadCounts())
        yield from reader.split(data, entries, headers[:, 0], headers[:, 1])
