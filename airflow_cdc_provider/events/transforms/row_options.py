"""Options of ``publish.unwrap`` and ``publish.outbox``. Imports little: read when DAG files are parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.events.transforms.java_patterns import (
    require_groups,
    wrong_pattern,
    wrong_replacement,
)
from airflow_cdc_provider.options import option
from airflow_cdc_provider.patterns import wrong_patterns

_PLACEMENTS = ("header", "envelope", "partition")


def _patterns(values: tuple[str, ...]) -> str:
    return wrong_patterns(values, "database.collection")


def _references(values: tuple[str, ...]) -> str:
    for value in values:
        if not re.fullmatch(r"\s*\w+(\.\w+)?(:[^:]+)?\s*", value):
            return f"field or struct.field, optionally followed by :new_name ({value!r})"
    return ""


def _placements(values: tuple[str, ...]) -> str:
    taken = {("header", "id"), ("envelope", "payload")}
    for value in values:
        parts = [part.strip() for part in value.split(":")]
        if len(parts) not in (2, 3) or not all(parts) or parts[1] not in _PLACEMENTS:
            return (
                "field:placement or field:placement:alias, with placement header, envelope or partition "
                f"({value!r})"
            )
        place = (parts[1], "" if parts[1] == "partition" else parts[-1 if len(parts) == 3 else 0])
        if place in taken:
            return f"names that differ from each other, from header id and from payload ({value!r})"
        taken.add(place)
    return ""


@dataclass(frozen=True, kw_only=True)
class UnwrapOptions:
    """Unwrapping of events to plain rows, like Debezium's ExtractNewDocumentState."""

    enabled: bool = option("Write events as rows, without an envelope", False)
    array_encoding: Literal["array", "document", "mixed"] = option(
        "Encoding of arrays. array: arrays, whose elements must have one type; document: structs with fields "
        "_0, _1 ...; mixed: as array, and elements of several types as texts, relaxed Extended JSON",
        "array",
    )
    flatten: bool = option("Flatten structs into their parents (flatten.struct)", False)
    delimiter: str = option("Delimiter in the names of flattened fields (flatten.struct.delimiter)", "_")
    deletes: Literal["drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone"] = (
        option(
            "Handling of deletes (delete.tombstone.handling.mode): drop: no record; tombstone, "
            "delete-to-tombstone: a record without value; rewrite: the previous row with __deleted; "
            "rewrite-with-tombstone: followed by a tombstone",
            "tombstone",
        )
    )
    rewrite_id: bool = option("Add the key as _id to rewritten deletes without a previous row", False)
    add_fields: tuple[str, ...] = option(
        "Envelope fields to add to rows: op, source.ts_ms, transaction.id ..., optionally with :new_name",
        (),
        check=_references,
    )
    add_fields_prefix: str = option("Prefix of their names", "__")
    add_headers: tuple[str, ...] = option("Envelope fields to add as headers", (), check=_references)
    add_headers_prefix: str = option("Prefix of their names", "__")
    field_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "Adjustment of field names for Avro; auto: avro with Avro, else none", "auto"
    )


@dataclass(frozen=True, kw_only=True)
class OutboxOptions:
    """Outbox collections, whose documents are events, routed like Debezium's MongoEventRouter."""

    enabled: bool = option("Enable outbox routing", False)
    tables: tuple[str, ...] = option(
        "Anchored regular expressions of outbox collections", (".*",), check=_patterns
    )
    event_id: str = option("Field of the event ID, written as header id", "_id")
    event_key: str = option("Field of the record key", "aggregateid")
    event_type: str = option("Field of the event type; use additional to include it in records", "type")
    event_timestamp: str = option(
        "Field of the record timestamp: a date, or milliseconds; default: current time",
        "",
    )
    payload: str = option("Field of the record value", "payload")
    schema_version: str = option("Field of the value's schema version; default: no version", "")
    additional: tuple[str, ...] = option(
        "Additional fields: field:placement[:alias], with placement header, envelope (next to payload in the "
        "value) or partition",
        (),
        check=_placements,
    )
    missing: Literal["error", "ignore"] = option("Handling of documents without an additional field", "error")
    route_by: str = option("Field that determines the topic", "aggregatetype")
    topic_regex: str = option(
        "Regular expression that matches the whole field, with groups for topic_replacement",
        "(?<routedByValue>.*)",
        check=wrong_pattern,
    )
    topic_replacement: str = option(
        "Topic name, with references to groups of topic_regex",
        "outbox.event.${routedByValue}",
        check=wrong_replacement,
    )
    tombstone_on_empty: bool = option("Write a tombstone for an event without payload", False)
    expand_json: bool = option(
        "Convert a document in payload to a struct; false: write Extended JSON as a string",
        False,
    )
    updates: Literal["warn", "error", "fatal"] = option(
        "Handling of updates of outbox documents: warn and error count them, fatal fails the run", "warn"
    )

    def __post_init__(self) -> None:
        """Reject references to missing groups."""
        require_groups("publish.outbox.topic_replacement", self.topic_regex, self.topic_replacement)
