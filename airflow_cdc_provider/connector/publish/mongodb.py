"""Event options of source mongodb, below ``publish``. Imports little: read when DAG files are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.events.field_paths import wrong_exclusion, wrong_renaming
from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class MongodbPublishOptions:
    """Event options of source mongodb."""

    json: Literal["legacy", "strict", "extended", "relaxed"] = option(
        "Format of documents in events (json.serialization.mode). legacy: Extended JSON v1, with "
        "updatedFields "
        "in relaxed v2; strict: v1; extended: canonical v2; relaxed: relaxed v2. Keys are always relaxed",
        "legacy",
    )
    key: Literal["id", "document_key"] = option(
        "Fields of keys. id: _id; document_key: shard key and _id, for collections whose _id is unique only "
        "per shard",
        "id",
    )
    shard_keys: Mapping[str, str] = option(
        "With key document_key: comma-separated shard key fields of each collection, for the keys of "
        "snapshot rows. Change events include theirs",
        {},
    )
    exclude_fields: tuple[str, ...] = option(
        "Fields to exclude from values, not from keys: database.collection.field, with .nested for nested "
        "fields; * matches any text in database and collection",
        (),
        check=wrong_exclusion,
    )
    rename_fields: tuple[str, ...] = option(
        "Fields to rename in values, applied in order: database.collection.field:new_name",
        (),
        check=wrong_renaming,
    )
    envelope_times: bool = option(
        "Add ts_us and ts_ns to envelopes, as in Debezium's documentation; its code writes only ts_ms",
        False,
    )
    resume_token_header: bool = option(
        "Add the header cdc.token, the resume token, to events of changes; equal for duplicates of an event",
        False,
    )
    resume_token_field: bool = option(
        "Add the resume token to the source block, as resume_token; null in rows of snapshots", False
    )
