"""From the output arrays of a table's kernel to contributions and reasons; what is common to CQL sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, UNRESOLVED, UPSERT
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import column_of
from airflow_cdc_provider.formats.kernels import Flags, Ints
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.cql.decoding.clustering import comparable_clusterings
from airflow_cdc_provider.sources.cql.decoding.programs import Program
from airflow_cdc_provider.sources.cql.decoding.sink import (
    CHANGE,
    ROWS_AT,
    SCOPE,
    STATE_END,
    STATES_AT,
    Sink,
    grow,
    new_sink,
)
from airflow_cdc_provider.sources.cql.reasons import BAD_CLUSTERING

_MOST_BYTES: Final = np.iinfo(np.int32).max


def fill_sink(offsets: Ints, program: Program, decode: Callable[[int, Sink], int]) -> Sink:
    """Decode payloads to a sink, which grows until it has room for all.

    Args:
        offsets: Start of each payload, then the end of the last one.
        program: The compiled table.
        decode: Decodes from a payload's number on until all are done or the sink is full; returns the number
            of the first that isn't done.
    """
    count = len(offsets) - 1
    sink = new_sink(int(offsets[-1] - offsets[0]), 2 * count, len(program.column_id))
    done = decode(0, sink)
    while done < count:
        sink = grow(sink)
        done = decode(done, sink)
    return sink


def to_decoded(
    sink: Sink,
    program: Program,
    keys: pa.Array,
    generations: pa.Array,
    failures: Ints,
    describe: Callable[[int, int, int], str],
    skipped: Flags | None = None,
) -> Decoded:
    """Return the contributions, in the order of the changes, and the undecodable rows.

    Args:
        sink: Has the cell rows.
        program: The compiled table.
        keys: Partition key of each change.
        generations: Generation of each change.
        failures: Reason and byte offset per change, 0 for success; invalid clusterings are added.
        describe: Returns the text of a failure, given the change's number, the reason and the offset.
        skipped: The changes to skip without a reason; None for none.

    Raises:
        ConfigurationError: The cell rows of the batch exceed 2 GiB, the limit of an Arrow batch.
    """
    rows = sink.rows[: sink.cursor[ROWS_AT]]
    clusterings, ends, malformed = comparable_clusterings(sink, program)
    failures[rows[malformed, CHANGE], 0] = BAD_CLUSTERING
    if sink.cursor[STATES_AT] > _MOST_BYTES:
        raise ConfigurationError(
            "a batch of changes decodes to more cell rows than an Arrow column can hold",
            expected=f"at most {_MOST_BYTES} bytes",
            found=str(sink.cursor[STATES_AT]),
            remedy="lower spark.sql.execution.arrow.maxRecordsPerBatch",
        )
    changes = pa.array(rows[:, CHANGE])
    state_ends = np.concatenate(([0], rows[:, STATE_END]))
    contributions = pa.RecordBatch.from_arrays(
        [
            keys.take(changes),
            pa.array(rows[:, SCOPE].astype(np.int8)),
            clusterings,
            ends,
            generations.take(changes),
            pa.nulls(len(rows), pa.binary()),
            pa.array(np.full(len(rows), UPSERT, np.int8)),
            column_of(pa.binary(), sink.states, state_ends, rows[:, SCOPE] != UNRESOLVED),
        ],
        schema=CONTRIBUTION_SCHEMA,
    )
    failed = failures[:, 0] != 0
    valid = ~(failed if skipped is None else failed | skipped)[rows[:, CHANGE]]
    if not valid.all():
        contributions = contributions.filter(pa.array(valid))
    undecodable = np.flatnonzero(failed if skipped is None else failed & ~skipped)
    return Decoded(
        contributions=contributions,
        undecodable=undecodable.tolist(),
        reasons=[describe(int(change), *map(int, failures[change])) for change in undecodable],
        rows=rows[valid, CHANGE],
    )
