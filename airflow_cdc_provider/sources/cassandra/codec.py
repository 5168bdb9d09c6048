"""The codec of one table, for executors and the offline commands: decodes changes and projects rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.cql import codec
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import TableSchema


@dataclass
class CassandraCodec(codec.CqlCodec):
    """The codec of one table: see :class:`~airflow_cdc_provider.sources.cql.codec.CqlCodec`. Picklable.

    Args:
        rules: Tie rules of the read path, ``4.0`` or ``3.11``.
    """

    rules: str = "4.0"

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot`` to contributions.

        Changes of another table id belong to a dropped table of the same name; they are skipped.
        """
        return self._decoder.decode(changes, fences)

    @cached_property
    def _decoder(self) -> UpdateDecoder:
        return UpdateDecoder(self.schema, former=True)


def recall_codec(
    schema: TableSchema, memory: Mapping[str, Any] | None, rules: str = "4.0", types: LakeTypes | None = None
) -> CassandraCodec:
    """Build a codec whose columns have the ids that a mirror has stored.

    Args:
        schema: The table's current schema.
        memory: The return value of :meth:`~airflow_cdc_provider.sources.cql.codec.CqlCodec.remember`, None
            for a new mirror.
        rules: See :class:`CassandraCodec`.
        types: Choices of lake types.

    Raises:
        TransientError: The mirror has stored a later schema of the table: following ``schema`` would drop
            columns that it lacks.
    """
    return codec.recall_codec(CassandraCodec, schema, memory, rules, types)
