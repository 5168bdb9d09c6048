"""Validation of ``publish.kafka.mode: after_merge``: options that require individual changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.connector.publish import PublishOptions


def validate_merged_rows(kind: str, publish: PublishOptions) -> None:
    """Reject options that rows of mirrors don't support, if these are published.

    Args:
        kind: Type of the source.
        publish: The options.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if not publish.kafka.enabled or not publish.kafka.after_merge:
        return
    for option, reason in _change_options(kind, publish):
        raise ConfigurationError(
            f"option {option} can't be combined with publish.kafka.mode: after_merge: {reason}",
            expected=f"no {option}",
            remedy="or publish.kafka.mode: changes",
        )


def validate_static_columns(publish: PublishOptions, static_columns: str) -> None:
    """Reject a separate table of static columns, whose rows would not be published.

    Args:
        publish: The options.
        static_columns: Location of static columns (``lake.static_columns``).

    Raises:
        ConfigurationError: Static columns are in a separate table.
    """
    if publish.kafka.enabled and publish.kafka.after_merge and static_columns != "rows":
        raise ConfigurationError(
            "publish.kafka.mode: after_merge requires static columns in the rows of mirrors",
            expected="lake.static_columns: rows",
            found=static_columns,
            remedy="or publish.kafka.mode: changes",
        )


def _change_options(kind: str, publish: PublishOptions) -> Iterator[tuple[str, str]]:
    """Yield enabled options that require individual changes, and the reason."""
    options = publish.cassandra
    if publish.envelope == "cloudevents" and kind != "mongodb":
        yield "publish.envelope: cloudevents", "CloudEvents IDs identify changes, which a merge combines"
    if publish.kafka.slices != 1:
        yield "publish.kafka.slices", "merged rows are published by one producer"
    if publish.transactions:
        yield "publish.transactions", "a merge combines the changes of many transactions"
    if publish.schema_changes:
        yield "publish.schema_changes", "mirrors contain only rows"
    if publish.outbox.enabled:
        yield (
            "publish.outbox",
            "each document of an outbox is an event, even if it is deleted before a merge",
        )
    if publish.skip_unchanged:
        yield (
            "publish.skip_unchanged",
            "unchanged rows have no events after a merge, and events have no before",
        )
    if options.before:
        yield "publish.cassandra.before", "rows before the merge are not published"
    if options.order != "log":
        yield "publish.cassandra.order", "a merge produces one event per row"
    if options.reread:
        yield "publish.cassandra.reread", "rows are read from the mirror"
    if publish.mongodb.resume_token_header:
        yield "publish.mongodb.resume_token_header", "rows of a mirror have no position in the stream"
    yield from _log_options(publish)
    if publish.vitess.key_columns:
        yield "publish.vitess.key_columns", "rows of a mirror are identified by their primary key"
    if publish.envelope == "datastax" and publish.skipped_operations:
        yield "publish.skipped_operations", "events of envelope datastax have no operation"
    if publish.event_index:
        yield "publish.event_index", "a merge combines the events of many changes"


def _log_options(publish: PublishOptions) -> Iterator[tuple[str, str]]:
    """Yield enabled options that require ScyllaDB's CDC log, and the reason."""
    options = publish.scylla
    if options.preimages:
        yield "publish.scylla.preimages", "rows before the merge are not published"
    if options.before != "none":
        yield "publish.scylla.before", "rows before the merge are not published"
    if options.after != "none":
        yield "publish.scylla.after", "rows are complete without postimages"
    if options.collection_changes:
        yield "publish.scylla.collection_changes", "collections are complete"
    if options.source_details:
        yield "publish.scylla.source_details", "rows of a mirror have no position in the log"
