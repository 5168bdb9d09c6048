"""What can't be published in several slices: whatever needs all events in one order, or looks across rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.connector.publish import PublishOptions


def refuse_clashing_slices(publish: PublishOptions) -> None:
    """Refuse choices that need one slice, where more are asked for.

    Raises:
        ConfigurationError: Names the first one.
    """
    if not publish.kafka.enabled or publish.kafka.slices == 1:
        return
    for option, why in _needing_one(publish):
        raise ConfigurationError(
            f"option {option} needs events in one order, and publish.kafka.slices parts them: {why}",
            expected="publish.kafka.slices: 1",
            found=str(publish.kafka.slices),
            remedy=f"or leave {option} out",
        )


def _needing_one(publish: PublishOptions) -> Iterator[tuple[str, str]]:
    """Yield options that are chosen and need one slice, and why."""
    own = publish.cassandra
    if publish.transactions:
        yield "publish.transactions", "a transaction's rows would be in several"
    if publish.schema_changes:
        yield "publish.schema_changes", "a change of a schema stands between the rows of all"
    if publish.outbox.enabled:
        yield "publish.outbox", "events of an aggregate are documents in several"
    if own.before:
        yield "publish.cassandra.before", "rows are followed over all batches that are read"
    if own.order == "write_time":
        yield "publish.cassandra.order: write_time", "all that a command reads is ordered together"
    if publish.envelope == "datastax":
        yield "publish.envelope: datastax", "rows are read again, once per batch"
    if publish.kafka.refused == "quarantine":
        yield "publish.kafka.refused: quarantine", "what is set apart is written by the driver"
