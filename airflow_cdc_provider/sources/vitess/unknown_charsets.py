"""Looks up character sets that Vitess doesn't support (``gbk``, ``big5``, ...) in MySQL.

The field of a column with such a collation, whether of the column or of its table, has collation id 0, and
its values are sent in that character set. The tablet's ``information_schema`` has the current collation,
which is the one at the time of the row, unless a statement has changed it since.

The schema id remains that of the original fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.vitess.charsets import UNKNOWN
from airflow_cdc_provider.sources.vitess.protocol import TYPES, FieldEvent, parse
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_OF_TEXT: Final = ("CHAR", "VARCHAR", "TEXT")
"""Types whose values are sent as stored; members of ENUM and SET are sent as UTF-8."""


def with_charsets(
    record: dict[str, Any], client: VtgateClient, tablet_type: str, seconds: float
) -> dict[str, Any]:
    """Return a record of fields with its unknown collations filled in; other records unchanged.

    Args:
        record: A record of any kind.
        client: The client.
        tablet_type: Type of the tablet to query.
        seconds: Timeout.

    Raises:
        CdcError: The tablet doesn't answer.
    """
    if record["kind"] != SCHEMA or record["schema_id"] in (DDL, LINEAGE):
        return record
    fields = parse(FieldEvent, record["payload"])
    unknown = [field for field in fields.fields if _is_unknown(field)]
    if not unknown:
        return record
    keyspace, _, shard = record["origin"].partition("/")
    table = record["source_table"].removeprefix(f"{keyspace}.")
    known = _collations(client, f"{keyspace}:{shard}@{tablet_type.lower()}", table, seconds)
    for field in unknown:
        field.charset = known.get(field.name, UNKNOWN)
    return {**record, "payload": fields.SerializeToString(deterministic=True)}


def _is_unknown(field: Any) -> bool:
    return field.charset == UNKNOWN and TYPES.get(field.type) in _OF_TEXT


def _collations(client: VtgateClient, target: str, table: str, seconds: float) -> Mapping[str, int]:
    """Query the collation ids of a table's columns."""
    name = table.replace("\\", "\\\\").replace("'", "''")
    rows = client.execute(
        "SELECT column_name, id FROM information_schema.columns JOIN information_schema.collations "
        f"USING (collation_name) WHERE table_schema = database() AND table_name = '{name}'",
        target,
        seconds,
    ).texts()
    return {column: int(number) for column, number in rows}
