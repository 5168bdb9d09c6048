"""The codec of one table: decodes log rows and projects rows, on executors and in the offline commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.sources.contract import Decoded
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

        Changes with another table id belong to a dropped table of the same name and are skipped.
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
    """Build a codec whose columns have the ids that a mirror stores.

    Args:
        schema: The current schema of the table.
        payloads: Schema records of its log that changes may need for decoding, by name.
        memory: The result of :meth:`~airflow_cdc_provider.sources.cql.codec.CqlCodec.remember`, None for a
            new mirror.
        types: Options of lake types.

    Raises:
        CorruptInput: A payload is not a schema record.
        TransientError: The mirror stores a later state of the table: applying this schema would drop columns
            that are newer than it.
    """
    logs = tuple(LogTable.of(payload) for _, payload in sorted(payloads.items()))
    return recall_codec(partial(ScyllaCodec, logs=logs), schema, memory, RULES, types)
