"""Decodes the log rows of one table and shows its rows: what executors and the offline commands work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.sources.base import Decoded
from airflow_cdc_provider.sources.cql.codec import CqlCodec, recall_codec
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.scylla.decoding.decode import LogDecoder
from airflow_cdc_provider.sources.scylla.log_table import LogTable

RULES: Final = "scylla"
"""Tie rules of ScyllaDB's read path."""


@dataclass
class ScyllaCodec(CqlCodec):
    """The codec of one table: see :class:`~airflow_cdc_provider.sources.cql.codec.CqlCodec`. Picklable.

    Args:
        logs: The versions of the table's log that changes may have.
    """

    rules: str = RULES
    logs: tuple[LogTable, ...] = ()

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot`` to contributions.

        Those of another table id are of a table of this name that was dropped: they are passed over.
        """
        return self._decoder.decode(changes, fences)

    @cached_property
    def _decoder(self) -> LogDecoder:
        return LogDecoder(self.schema, self.logs)


def recall_scylla_codec(
    schema: TableSchema,
    payloads: Mapping[str, bytes],
    memory: Mapping[str, Any] | None,
    types: LakeTypes | None = None,
) -> ScyllaCodec:
    """Build a codec whose columns have the ids that a mirror remembers.

    Args:
        schema: The table as it is now.
        payloads: Schema records of its log by which changes may have to be decoded, by their names.
        memory: What :meth:`~airflow_cdc_provider.sources.cql.codec.CqlCodec.remember` gave, None for a new
            mirror.
        types: Choices of lake types.

    Raises:
        CorruptInput: A payload is no schema record.
        TransientError: The mirror remembers a later state of the table: to follow the schema would drop
            columns that it doesn't know yet.
    """
    logs = tuple(LogTable.of(payload) for _, payload in sorted(payloads.items()))
    return recall_codec(partial(ScyllaCodec, logs=logs), schema, memory, RULES, types)
