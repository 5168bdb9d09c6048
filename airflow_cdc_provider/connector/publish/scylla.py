"""Event options of source scylla. Imports little: read when DAG files are parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option

KEY_PLACEMENTS: Final = ("kafka-key", "payload-after", "payload-before", "payload-key", "kafka-headers")

_ENVELOPE_FIELDS: Final = frozenset(
    {"source", "before", "after", "collections", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}
)
_LEGACY_ONLY: Final = ("preimages", "all_types", "flatten_columns", "keep_cell_structs")
_ADVANCED_ONLY: Final = ("before", "after", "key_placement", "payload_key_name")


def _key_placements(values: tuple[str, ...]) -> str:
    known = bool(values) and set(values) <= set(KEY_PLACEMENTS)
    return "" if known else f"at least one of {', '.join(KEY_PLACEMENTS)}"


def _field_name(value: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) and value not in _ENVELOPE_FIELDS:
        return ""
    return "letters, digits and _, and no field name of the envelope"


@dataclass(frozen=True)
class ScyllaPublishOptions:
    """Event options of source scylla."""

    format: Literal["legacy", "advanced"] = option(
        "Format of events (cdc.output.format). legacy: non-key columns are structs with one field, value, "
        "which distinguishes null from an unchanged column; advanced: plain values, with preimages and "
        "postimages",
        "legacy",
    )
    before: Literal["none", "full", "only-updated"] = option(
        "Format advanced: the row before the change (cdc.include.before): full, or only updated columns. "
        "Requires preimages of the table",
        "none",
    )
    after: Literal["none", "full", "only-updated"] = option(
        "Format advanced: the row after the change (cdc.include.after). Requires postimages of the table. "
        "none: the columns set by the statement, which the connector omits",
        "none",
    )
    key_placement: tuple[str, ...] = option(
        "Format advanced: locations of primary key columns (cdc.include.primary-key.placement): kafka-key, "
        "payload-after, payload-before, payload-key (a field of the value), kafka-headers (pk.NAME and "
        "ck.NAME)",
        KEY_PLACEMENTS[:3],
        check=_key_placements,
    )
    payload_key_name: str = option(
        "Field name of payload-key (cdc.include.primary-key.payload-key-name)",
        "key",
        check=_field_name,
    )
    preimages: bool = option(
        "Format legacy: write the preimage to before (experimental.preimages.enabled)", False
    )
    all_types: bool = option(
        "Format legacy: include collections, tuples and user-defined types, which the connector omits",
        False,
    )
    flatten_columns: bool = option(
        "Format legacy: write plain values instead of structs (transform ScyllaFlattenColumns); null and "
        "unchanged columns are indistinguishable",
        False,
    )
    keep_cell_structs: bool = option(
        "Format legacy: keep structs in rows of publish.unwrap, like Debezium's ExtractNewRecordState; "
        "false: plain values, like ScyllaExtractNewRecordState",
        False,
    )
    collection_changes: bool = option(
        "Add field collections: for each non-frozen collection and user-defined type the removed elements, "
        "IDs of new list cells, and whether the value was replaced. false: events have only added elements, "
        "like the connector's",
        False,
    )
    source_details: bool = option(
        "Add to the source block: stream_id, time (cdc$time) and batch_seq_no, which identify a change; ttl; "
        "by_service, whether the server's expiry service deleted the row; before_is_image and "
        "after_is_image",
        False,
    )
    static_keys: Literal["partition", "null"] = option(
        "Keys of events of static columns. partition: only the partition key, with a separate schema; null: "
        "null clustering columns, like the connector",
        "partition",
    )

    def images(self) -> tuple[str, str]:
        """Return the options that require preimages and postimages; empty for none."""
        before = "publish.scylla.preimages" if self.preimages else ""
        if self.before != "none":
            before = "publish.scylla.before"
        return before, "publish.scylla.after" if self.after != "none" else ""


def validate_scylla_options(publish: ScyllaPublishOptions, *, rows: bool) -> None:
    """Reject options without effect in the event format.

    Args:
        publish: The options.
        rows: Whether events are rows, without an envelope.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if publish.keep_cell_structs and not rows:
        raise ConfigurationError(
            "option publish.scylla.keep_cell_structs requires rows", expected="publish.unwrap.enabled: true"
        )
    other = _ADVANCED_ONLY if publish.format == "legacy" else _LEGACY_ONLY
    for name in other:
        if getattr(publish, name) != getattr(ScyllaPublishOptions(), name):
            raise ConfigurationError(
                f"option publish.scylla.{name} has no effect in format {publish.format}",
                expected="its default, or the other publish.scylla.format",
            )
