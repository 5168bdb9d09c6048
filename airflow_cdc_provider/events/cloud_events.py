"""CloudEvents 1.0 in JSON (structured mode), like Debezium's CloudEventsConverter.

Members, in order: ``id``, ``source`` (``/debezium/<connector>/<topic prefix>``), ``specversion``, ``type``,
``time`` (RFC 3339, of the change), ``datacontenttype``; then extension attributes: the operation, each field
of the source block and of the transaction under ``iodebezium...`` (only letters and digits; 64-bit integers
as text, because CloudEvents lacks them); then ``data`` with the document before and after and the update
description. With schemas ``data`` is ``{"schema", "payload"}``; the event itself never has a schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import OPTIONAL_STRING, STRING, TRANSACTION, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.transforms.java_dates import written
from airflow_cdc_provider.formats.arrow_bytes import join

_DATA: Final = ("before", "after", "updateDescription")
_PREFIX: Final = "iodebezium"


@dataclass(frozen=True)
class _Member:
    """An attribute: name, schema and one value per event."""

    name: str
    schema: ConnectSchema
    values: pa.Array


def wrap(
    envelope: Envelope,
    id_fields: Sequence[tuple[str, str]],
    *,
    schemas: bool,
    id_parts: Mapping[str, pa.Array] | None = None,
) -> Envelope:
    """Convert events in Debezium's envelope to CloudEvents.

    Args:
        envelope: The events, which all have values.
        id_fields: Parts of the event ID: names in the ID and fields of the source block.
        schemas: Whether ``data`` includes its schema.
        id_parts: Further parts of the event ID: texts or numbers per event by name.

    Returns:
        The same records with text values. Keys, tombstones and headers are unchanged.
    """
    value, schema = envelope.value, envelope.destinations[0].value
    fields = dict(schema.fields)
    id_values = [(name, value.field("source").field(field)) for name, field in id_fields]
    members = list(_attributes(value, fields, [*id_values, *(id_parts or {}).items()]))
    head = to_json(
        struct("", *((member.name, member.schema) for member in members)),
        pa.StructArray.from_arrays([m.values for m in members], [m.name for m in members]),
    )
    names = [name for name in _DATA if name in fields]
    kind = value.field("source").field("connector")[0].as_py() if len(value) else ""
    data_schema = struct(f"io.debezium.connector.{kind}.Data", *((name, fields[name]) for name in names))
    data = to_json(data_schema, pa.StructArray.from_arrays([value.field(name) for name in names], names))
    if schemas:
        data = join(f'{{"schema":{data_schema.to_json()},"payload":', data, "}")
    return replace(
        envelope,
        destinations=[replace(d, value=OPTIONAL_STRING) for d in envelope.destinations],
        value=join(pc.utf8_slice_codeunits(head, 0, -1), ',"data":', data, "}"),
        verbatim=True,
        self_described=True,
    )


def _attributes(
    value: pa.StructArray, fields: dict[str, ConnectSchema], id_parts: Sequence[tuple[str, pa.Array]]
) -> Iterator[_Member]:
    """Yield the attributes in order."""
    count = len(value)
    source = value.field("source")

    def fixed(name: str, text: str) -> _Member:
        return _Member(name, STRING, pa.repeat(text, count))

    parts: list[pa.Array | str] = []
    for name, id_values in id_parts:
        parts += [f"{';' if parts else ''}{name}:", id_values.cast(pa.large_utf8()).fill_null("")]
    yield _Member("id", STRING, join(*parts))
    connector = source.field("connector").cast(pa.large_utf8())
    yield _Member(
        "source", STRING, join("/debezium/", connector, "/", source.field("name").cast(pa.large_utf8()))
    )
    yield fixed("specversion", "1.0")
    yield _Member("type", STRING, join("io.debezium.connector.", connector, ".DataChangeEvent"))
    yield _Member("time", STRING, written("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", source.field("ts_ms")))
    yield fixed("datacontenttype", "application/json")
    yield _Member(f"{_PREFIX}op", STRING, value.field("op"))
    for name, schema in fields["source"].fields:
        yield _extension(name, schema, source.field(name))
    if "transaction" not in fields:
        return
    transaction = value.field("transaction")
    for number, (name, schema) in enumerate(TRANSACTION.fields):
        texts = (
            pa.nulls(count) if pa.types.is_null(transaction.type) else pc.struct_field(transaction, [number])
        )
        yield _extension(f"tx{name}", replace(schema, optional=True), texts)


def _extension(name: str, schema: ConnectSchema, values: pa.Array) -> _Member:
    """Convert a field to an extension attribute: CloudEvents has text, booleans and 32-bit integers."""
    name = _PREFIX + re.sub(r"[^A-Za-z0-9]", "", name)
    if schema.type == "int64":
        values = values.cast(pa.large_utf8())
    kind = schema.type if schema.type in ("int32", "boolean") else "string"
    if pa.types.is_null(values.type):
        values = values.cast(pa.large_utf8() if kind == "string" else pa.int32())
    return _Member(name, ConnectSchema(kind, optional=schema.optional), values)
