"""Encode clusterings of decoded rows and bounds of range deletions in byte-comparable form."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.cells import ROW_HEADER_BYTES
from airflow_cdc_provider.changes.contribution import RANGE_DELETION, ROW
from airflow_cdc_provider.formats.arrow_bytes import column_of
from airflow_cdc_provider.formats.byte_kernels import load_little16, load_little32
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cql.comparable import AFTER, encode_clustering
from airflow_cdc_provider.sources.cql.decoding.programs import Program
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUND_HEADER_BYTES,
    LOWER,
    ROWS_AT,
    SCOPE,
    STATE_END,
    UPPER,
    Sink,
)
from airflow_cdc_provider.sources.cql.scratch import Scratch, new_scratch


def comparable_clusterings(sink: Sink, program: Program) -> tuple[pa.BinaryArray, pa.BinaryArray, Flags]:
    """Encode the clustering or bounds of each contribution.

    Args:
        sink: Contributions of the program's only table.
        program: The compiled table.

    Returns:
        Columns ``clustering`` and ``clustering_end``, and which contributions have a value that is invalid
        for its type; their values in the columns are undefined.
    """
    rows = sink.rows[: sink.cursor[ROWS_AT]]
    clusterings, malformed = _encode_column(sink, program, rows, np.int64(LOWER))
    if (rows[:, UPPER] < 0).all():
        return clusterings, pa.nulls(len(rows), pa.binary()), malformed
    ends, end_malformed = _encode_column(sink, program, rows, np.int64(UPPER))
    return clusterings, ends, malformed | end_malformed


def _encode_column(sink: Sink, program: Program, rows: Ints, which: np.int64) -> tuple[pa.BinaryArray, Flags]:
    ends = np.zeros(len(rows) + 1, np.int64)
    present = rows[:, UPPER] >= 0 if which == UPPER else None
    malformed = np.zeros(len(rows), np.bool_)
    out = np.empty(24 * len(rows) + 4096, np.uint8)
    scratch = new_scratch(int(max(np.diff(rows[:, STATE_END], prepend=0).max(initial=0), len(sink.bounds))))
    done = _encode(sink.states, sink.bounds, program, rows, which, 0, out, ends, malformed, scratch)
    while done < len(rows):
        longer = np.empty(2 * len(out), np.uint8)
        longer[: ends[done]] = out[: ends[done]]
        out = longer
        done = _encode(sink.states, sink.bounds, program, rows, which, done, out, ends, malformed, scratch)
    return column_of(pa.binary(), out, ends, present), malformed


@walker
def _encode(
    states: Bytes,
    bounds: Bytes,
    program: Program,
    rows: Ints,
    which: Int,
    first: Int,
    out: Bytes,
    ends: Ints,
    malformed: Flags,
    scratch: Scratch,
) -> Int:
    """Encode from contribution ``first`` until all are done or ``out`` is full; return the next number."""
    columns = len(program.clustering_root)
    at = ends[first]
    for row in range(first, len(rows)):
        after = False
        source, start, end, count = states, np.int64(0), np.int64(0), 0
        scope = rows[row, SCOPE]
        if scope == ROW and which == LOWER:
            start = np.int64(ROW_HEADER_BYTES) + (rows[row - 1, STATE_END] if row > 0 else 0)
            end = start + load_little32(states, start - 8)
            count = columns
        elif scope == RANGE_DELETION and rows[row, which] >= 0:
            bound = rows[row, which]
            source, start, end = bounds, bound + BOUND_HEADER_BYTES, np.int64(len(bounds))
            count = load_little16(bounds, bound)
            after = bounds[bound + 2] != 0 and count > 0
        encoded_end = at
        if count > 0:
            encoded_end = encode_clustering(
                program.types,
                program.clustering_root,
                program.descending,
                count,
                source,
                start,
                end,
                scratch,
                out,
                at,
            )
        if encoded_end < 0:
            malformed[row] = True
            encoded_end = at
            after = False
        if encoded_end + (1 if after else 0) > len(out):
            return row
        if after:
            out[encoded_end] = AFTER
            encoded_end += 1
        at = encoded_end
        ends[row + 1] = at
    return len(rows)
