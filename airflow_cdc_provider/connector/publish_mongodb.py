"""What events of MongoDB can look like: options below ``publish``. Light: read by DAG files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option
from airflow_cdc_provider.sources.mongodb.field_paths import wrong_exclusion, wrong_renaming

_PLACEMENTS = ("header", "envelope", "partition")


def _patterns(values: tuple[str, ...]) -> str:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions on database.collection ({value!r}: {error})"
    return ""


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        return f"a regular expression ({error})"
    return ""


def _references(values: tuple[str, ...]) -> str:
    for value in values:
        if not re.fullmatch(r"\s*\w+(\.\w+)?(:[^:]+)?\s*", value):
            return f"field or struct.field each, with :new_name behind it where it is renamed ({value!r})"
    return ""


def _placements(values: tuple[str, ...]) -> str:
    for value in values:
        parts = [part.strip() for part in value.split(":")]
        if len(parts) not in (2, 3) or not all(parts) or parts[1] not in _PLACEMENTS:
            return (
                "field:placement or field:placement:alias each, with placement header, envelope or partition "
                f"({value!r})"
            )
    return ""


@dataclass(frozen=True)
class MongodbPublishOptions:
    """Choices that only events of MongoDB have."""

    json: Literal["legacy", "strict", "extended", "relaxed"] = option(
        "Form of documents in events (json.serialization.mode): legacy: Extended JSON version 1, with "
        "updatedFields in relaxed version 2; strict: version 1; extended: canonical version 2; relaxed: "
        "relaxed version 2. Keys are relaxed always",
        "legacy",
    )
    key: Literal["id", "document_key"] = option(
        "What identifies a document in keys: its _id; document_key: shard key and _id, for collections whose "
        "_id is unique per shard only",
        "id",
    )
    shard_keys: Mapping[str, str] = option(
        "Per collection, the fields of its shard key, with commas between them: with key document_key, what "
        "rows of snapshots are keyed by beside _id. Change events bring theirs along",
        {},
    )
    exclude_fields: tuple[str, ...] = option(
        "Fields to leave out of values: database.collection.field, with .nested for one inside it; * stands "
        "for any text in database and collection. Keys keep theirs",
        (),
        check=wrong_exclusion,
    )
    rename_fields: tuple[str, ...] = option(
        "Fields to rename in values, one after the other: database.collection.field:new_name",
        (),
        check=wrong_renaming,
    )
    envelope_times: bool = option(
        "Envelopes have ts_us and ts_ns beside ts_ms, as Debezium's page shows them; its code writes none",
        False,
    )
    token_header: bool = option(
        "A header cdc.token on each event of a change: its resume token, equal when an event comes again",
        False,
    )


Deletes = Literal["drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone"]


@dataclass(frozen=True)
class UnwrapOptions:
    """Events as plain rows, as Debezium's ExtractNewDocumentState makes them."""

    enabled: bool = option("Whether events are rows, without an envelope", False)
    array_encoding: Literal["array", "document"] = option(
        "What becomes of arrays: array: lists, whose elements must be of one type; document: structs with "
        "fields _0, _1 ...",
        "array",
    )
    flatten: bool = option("Structs become fields of their parents (flatten.struct)", False)
    delimiter: str = option("Stands between the names of such fields (flatten.struct.delimiter)", "_")
    deletes: Literal["drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone"] = (
        option(
            "What becomes of deletes: no record; one without value (tombstone, delete-to-tombstone); the row "
            "before with __deleted, alone or with a tombstone after it (delete.tombstone.handling.mode)",
            "tombstone",
        )
    )
    rewrite_id: bool = option("Give rewritten deletes without a row before them the key as _id", False)
    add_fields: tuple[str, ...] = option(
        "Fields of the envelope that rows have too: op, source.ts_ms, transaction.id ..., with :new_name",
        (),
        check=_references,
    )
    add_fields_prefix: str = option("Leads their names", "__")
    add_headers: tuple[str, ...] = option("Likewise, for headers", (), check=_references)
    add_headers_prefix: str = option("Leads their names", "__")
    field_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "How names of fields are made fit for Avro; auto: avro where Avro is written, else none", "auto"
    )


@dataclass(frozen=True)
class OutboxOptions:
    """Documents that are events themselves, routed as Debezium's MongoEventRouter does it."""

    enabled: bool = option("Whether there are such collections", False)
    tables: tuple[str, ...] = option(
        "Anchored regular expressions of these collections", (".*",), check=_patterns
    )
    event_id: str = option("Field of the event's id, which becomes header id", "_id")
    event_key: str = option("Field of the record's key", "aggregateid")
    event_type: str = option("Field of the event's type; place it by additional to see it", "type")
    event_timestamp: str = option(
        "Field of the record's time: a date, or milliseconds as a number; default: when the record is made",
        "",
    )
    payload: str = option("Field of the record's value", "payload")
    schema_version: str = option("Field of the version of the value's schema; default: it has none", "")
    additional: tuple[str, ...] = option(
        "Further fields: field:placement[:alias], with placement header, envelope (of the value, beside "
        "payload) or partition",
        (),
        check=_placements,
    )
    missing: Literal["error", "ignore"] = option("What a document without such a field means", "error")
    route_by: str = option("Field that the topic is named by", "aggregatetype")
    topic_regex: str = option(
        "Expression on the whole of that field, with groups for the topic's name",
        "(?<routedByValue>.*)",
        check=lambda value: _pattern(re.sub(r"\(\?<(?![=!])", "(?P<", value)),
    )
    topic_replacement: str = option("The topic's name", "outbox.event.${routedByValue}")
    tombstone_on_empty: bool = option("An event without payload is a record without value", False)
    expand_json: bool = option(
        "A payload that is a document becomes a struct; otherwise it is shown as Extended JSON, as text",
        False,
    )
    updates: Literal["warn", "error", "fatal"] = option(
        "What an update of such a document means: warn and error count it, fatal ends the run", "warn"
    )
