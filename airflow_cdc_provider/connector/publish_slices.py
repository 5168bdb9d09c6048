"""Validation of ``publish.kafka.slices``: options that require a total order of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.connector.publish import PublishOptions


def validate_slices(publish: PublishOptions) -> None:
    """Reject options that require a single slice if there are several.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if not publish.kafka.enabled or publish.kafka.slices == 1:
        return
    for option, reason in _single_slice_options(publish):
        raise ConfigurationError(
            f"option {option} requires a total order of events, which publish.kafka.slices doesn't keep: "
            ""
            ""
            f"{reason}",
            expected="publish.kafka.slices: 1",
            found=str(publish.kafka.slices),
            remedy=f"or remove {option}",
        )


def _single_slice_options(publish: PublishOptions) -> Iterator[tuple[str, str]]:
    """Yield enabled options that require a single slice, and the reason."""
    options = publish.cassandra
    if publish.transactions:
        yield "publish.transactions", "rows of a transaction would be in several slices"
    if publish.schema_changes:
        yield "publish.schema_changes", "schema changes are ordered among the rows of all slices"
    if publish.outbox.enabled:
        yield "publish.outbox", "documents of an aggregate would be in several slices"
    if options.before:
        yield "publish.cassandra.before", "rows are tracked across all batches"
    if options.order == "write_time":
        yield "publish.cassandra.order: write_time", "all events of a command are sorted together"
    if publish.envelope == "datastax":
        yield "publish.envelope: datastax", "rows are read again once per batch"
    if publish.kafka.on_record_error == "dead_letters":
        yield "publish.kafka.on_record_error: dead_letters", "dead letters are written by the driver"
