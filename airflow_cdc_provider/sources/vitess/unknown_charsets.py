"""Character sets that Vitess doesn't know (``gbk``, ``big5``, ...), asked of MySQL.

Of a column with such a collation a field tells the number 0, whether it is the column's own or its table's,
and its values come in that character set. The tablet's ``information_schema`` knows it: what columns have
now, which is what they had when a row was written, unless a statement changed it since.

The name of the fields stays that of the fields as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.vitess.charsets import UNKNOWN
from airflow_cdc_provider.sources.vitess.protocol import TYPES, FieldEvent
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_OF_TEXT: Final = ("CHAR", "VARCHAR", "TEXT")
"""Types whose values come as they are stored; members of ENUM and SET come as UTF-8."""


def with_charsets(
    record: dict[str, Any], client: VtgateClient, tablet_type: str, seconds: float
) -> dict[str, Any]:
    """Return a record of fields with the collations that it doesn't tell; others as they are.

    Args:
        record: Of whatever kind.
        client: To ask by.
        tablet_type: Type of the tablet to ask.
        seconds: When to give up.

    Raises:
        CdcError: The tablet doesn't answer.
    """
    if record["kind"] != SCHEMA or record["schema_id"] in (DDL, LINEAGE):
        return record
    fields = FieldEvent.FromString(record["payload"])
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
    """Ask for the ids of the collations of a table's columns."""
    name = table.replace("\\", "\\\\").replace("'", "''")
    rows = client.execute(
        "SELECT column_name, id FROM information_schema.columns JOIN information_schema.collations "
        f"USING (collation_name) WHERE table_schema = database() AND table_name = '{name}'",
        target,
        seconds,
    ).texts()
    return {column: int(number) for column, number in rows}
