"""What events of ScyllaDB can look like: options below ``publish.scylla``. Light: read by DAG files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option

KEY_PLACES: Final = ("kafka-key", "payload-after", "payload-before", "payload-key", "kafka-headers")

_ENVELOPE_FIELDS: Final = frozenset(
    {"source", "before", "after", "collections", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}
)
_LEGACY_ONLY: Final = ("preimages", "all_types", "flatten_columns", "rows_of_cells")
_ADVANCED_ONLY: Final = ("before", "after", "key_placement", "payload_key_name")


def _places(values: tuple[str, ...]) -> str:
    known = bool(values) and set(values) <= set(KEY_PLACES)
    return "" if known else f"at least one of {', '.join(KEY_PLACES)}"


def _field_name(value: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) and value not in _ENVELOPE_FIELDS:
        return ""
    return "letters, digits and _, and no name of the envelope's own fields"


@dataclass(frozen=True)
class ScyllaPublishOptions:
    """Choices that only events of ScyllaDB have."""

    format: Literal["legacy", "advanced"] = option(
        "Form of the events (cdc.output.format). legacy: columns that are in no key stand in structs with "
        "one field, value, so that a null and a column that wasn't touched differ; advanced: plain values, "
        "with images of the row before and after",
        "legacy",
    )
    before: Literal["none", "full", "only-updated"] = option(
        "In format advanced, the row before the change (cdc.include.before): full, or of an update the "
        "columns that it says something of. The table needs preimages",
        "none",
    )
    after: Literal["none", "full", "only-updated"] = option(
        "In format advanced, the row after the change, likewise (cdc.include.after). The table needs "
        "postimages. none: the columns that the statement set; the connector shows none of them then",
        "none",
    )
    key_placement: tuple[str, ...] = option(
        "In format advanced, where the columns of primary keys stand (cdc.include.primary-key.placement): "
        "some of kafka-key, payload-after, payload-before, payload-key (a field of the value) and "
        "kafka-headers (pk.NAME and ck.NAME)",
        KEY_PLACES[:3],
        check=_places,
    )
    payload_key_name: str = option(
        "Name of the field of payload-key (cdc.include.primary-key.payload-key-name)",
        "key",
        check=_field_name,
    )
    preimages: bool = option(
        "In format legacy, before shows the preimage (experimental.preimages.enabled)", False
    )
    all_types: bool = option(
        "In format legacy, collections, tuples and user-defined types are shown too; the connector leaves "
        "them out",
        False,
    )
    flatten_columns: bool = option(
        "In format legacy, values stand without the structs around them (transform ScyllaFlattenColumns); a "
        "null and a column that wasn't touched look alike then",
        False,
    )
    rows_of_cells: bool = option(
        "In format legacy, rows of publish.unwrap keep the structs around their values, as Debezium's own "
        "ExtractNewRecordState leaves them; false: they don't (ScyllaExtractNewRecordState)",
        False,
    )
    collection_changes: bool = option(
        "Values have a field collections: of each collection and user-defined type that isn't frozen what "
        "was removed, the ids of a list's new cells, and whether all that was there before was replaced. "
        "Without it an event shows what was added alone, as the connector's do",
        False,
    )
    source_details: bool = option(
        "The source block also tells stream_id, time (cdc$time) and batch_seq_no, which name a change for "
        "good; the ttl of what was written; by_service, whether the server's expiry service deleted the row; "
        "before_is_image and after_is_image",
        False,
    )
    static_keys: Literal["partition", "null"] = option(
        "Keys of events of static columns: the partition key alone, in a schema of its own; null: with null "
        "clustering columns, as the connector writes them",
        "partition",
    )

    def images(self) -> tuple[str, str]:
        """Return which option asks for preimages and which for postimages; empty for none."""
        before = "publish.scylla.preimages" if self.preimages else ""
        if self.before != "none":
            before = "publish.scylla.before"
        return before, "publish.scylla.after" if self.after != "none" else ""


def refuse_clashing_scylla(publish: ScyllaPublishOptions, *, rows: bool) -> None:
    """Refuse choices that the events' format doesn't know.

    Args:
        publish: The choices.
        rows: Whether events are rows, without an envelope.

    Raises:
        ConfigurationError: Names the first one.
    """
    if publish.rows_of_cells and not rows:
        raise ConfigurationError(
            "option publish.scylla.rows_of_cells is about rows", expected="publish.unwrap.enabled: true"
        )
    other = _ADVANCED_ONLY if publish.format == "legacy" else _LEGACY_ONLY
    for name in other:
        if getattr(publish, name) != getattr(ScyllaPublishOptions(), name):
            raise ConfigurationError(
                f"option publish.scylla.{name} says nothing in format {publish.format}",
                expected="its default, or the other publish.scylla.format",
            )
