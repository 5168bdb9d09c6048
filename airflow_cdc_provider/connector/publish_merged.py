"""What can't be published after merges: whatever only the changes themselves tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.connector.publish import PublishOptions


def refuse_clashing_merged(kind: str, publish: PublishOptions) -> None:
    """Refuse choices that rows of mirrors can't follow, where these are to be published.

    Args:
        kind: The source's type.
        publish: The choices.

    Raises:
        ConfigurationError: Names the first one.
    """
    if not publish.kafka.enabled or not publish.kafka.after_merge:
        return
    for option, why in _of_changes(kind, publish):
        raise ConfigurationError(
            f"option {option} doesn't go with publish.kafka.what: after_merge: {why}",
            expected=f"{option} left out",
            remedy="or publish.kafka.what: changes",
        )


def refuse_statics_apart(publish: PublishOptions, statics: str) -> None:
    """Refuse rows without the static columns that belong to them.

    Args:
        publish: The choices.
        statics: Where mirrors show static columns (``lake.statics``).

    Raises:
        ConfigurationError: A table of their own, whose rows would be told to nobody.
    """
    if publish.kafka.enabled and publish.kafka.after_merge and statics != "rows":
        raise ConfigurationError(
            "publish.kafka.what: after_merge publishes mirrors' rows with their static columns",
            expected="lake.statics: rows",
            found=statics,
            remedy="or publish.kafka.what: changes",
        )


def _of_changes(kind: str, publish: PublishOptions) -> Iterator[tuple[str, str]]:
    """Yield options that are chosen and need the changes, and why."""
    own = publish.cassandra
    if publish.envelope == "cloudevents" and kind != "mongodb":
        yield "publish.envelope: cloudevents", "ids of CloudEvents name changes, which a merge joins"
    if publish.kafka.slices != 1:
        yield "publish.kafka.slices", "one producer publishes what a merge changed"
    if publish.transactions:
        yield "publish.transactions", "a merge joins the changes of many transactions"
    if publish.schema_changes:
        yield "publish.schema_changes", "mirrors hold rows alone"
    if publish.outbox.enabled:
        yield (
            "publish.outbox",
            "each document of an outbox is an event, also one that is deleted before a merge",
        )
    if publish.skip_unchanged:
        yield "publish.skip_unchanged", "a row that a merge left as it was has no event, and none has before"
    if own.before:
        yield "publish.cassandra.before", "the row before the merge isn't published"
    if own.order != "log":
        yield "publish.cassandra.order", "a merge has one event of each row"
    if own.reread:
        yield "publish.cassandra.reread", "rows are read from the mirror"
    if publish.mongodb.token_header:
        yield "publish.mongodb.token_header", "a row of a mirror has no place in the stream"
    yield from _of_logs(publish)
    if publish.vitess.key_columns:
        yield "publish.vitess.key_columns", "rows of a mirror are known by their primary key"
    if publish.envelope == "datastax" and publish.skipped_operations:
        yield "publish.skipped_operations", "events of envelope datastax have no operation"
    if publish.event_index:
        yield "publish.event_index", "a merge joins the events of many changes"


def _of_logs(publish: PublishOptions) -> Iterator[tuple[str, str]]:
    """Likewise, of what ScyllaDB's logs alone tell."""
    own = publish.scylla
    if own.preimages:
        yield "publish.scylla.preimages", "the row before the merge isn't published"
    if own.before != "none":
        yield "publish.scylla.before", "the row before the merge isn't published"
    if own.after != "none":
        yield "publish.scylla.after", "rows are whole without postimages"
    if own.collection_changes:
        yield "publish.scylla.collection_changes", "collections are told whole"
    if own.source_details:
        yield "publish.scylla.source_details", "a row of a mirror has no place in the log"
