"""Operators on a connector's topics: create them, replay events, compare them with mirrors.

Publishing itself is a separate stage, or the last step of a sync: :mod:`.stages`.

Example::

    again = CdcReplayOperator(
        task_id="again", connector="shop.yaml", since="2026-11-23T08:00Z", topic_prefix="replay.shop"
    )
    same = CdcCompareTopicsOperator(task_id="same", connector="shop.yaml")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.operators._create_topics import create_missing
from airflow_cdc_provider.operators._on_connector import ConnectorOperator
from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.tasks.parameters import to_integer, to_mapping
from airflow_cdc_provider.tasks.summary import few_differences

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_log = logger("airflow_cdc_provider.operators")


class CdcCreateTopicsOperator(ConnectorOperator):
    """Creates the missing topics of a connector's tables, without Spark, before the first publishing.

    Publishing creates a topic before its first record anyway. Use this for consumers that need all topics to
    exist, and for connectors with ``publish.topics.create: false`` whose topics one task with the permission
    creates. Topics to which transforms route events aren't known in advance. Existing topics aren't altered;
    differences from the declaration are logged. XCom: ``created`` and ``existing``, lists of topics.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        source_conn_id: Connection of the source, to list its tables, instead of the declared one (templated).
        kafka_conn_id: Connection of the brokers instead of the declared one (templated).
    """

    template_fields: Sequence[str] = ("connector", "source_conn_id", "kafka_conn_id")

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        source_conn_id: str | None = None,
        kafka_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(connector=connector, **kwargs)
        self.source_conn_id = source_conn_id
        self.kafka_conn_id = kafka_conn_id

    def perform(self, context: Context) -> dict[str, list[str]]:
        """Create the topics."""
        topics = create_missing(to_connector(self.connector), self.source_conn_id, self.kafka_conn_id)
        for topic in topics["created"]:
            _log.info("Created topic %s", topic)
        return topics


class CdcReplayOperator(SparkStageOperator):
    """Publishes the events of a range of batches again, to their topics or to others.

    The position of publishing isn't changed. After a failure the next try continues; a task that is cleared
    after it succeeded sends all events again. XCom's ``replayed`` has batches, records and transactions.

    Args:
        first_batch: The first batch of the changes table; default: the oldest retained one (templated).
        last_batch: The last batch; default: the last published one, with another prefix the newest one
            (templated).
        since: Instead of numbers: batches committed at or after this time, ISO 8601 (templated).
        until: Instead of numbers: batches committed up to this time (templated).
        topic_prefix: Prefix of the topics instead of the connector's; empty for the same topics (templated).
        request: Id of the request; default: DAG, run and task (templated).
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "replay"
    template_fields: Sequence[str] = (
        *SparkStageOperator.template_fields,
        "first_batch",
        "last_batch",
        "since",
        "until",
        "topic_prefix",
        "request",
    )

    def __init__(
        self,
        *,
        first_batch: int | str | None = None,
        last_batch: int | str | None = None,
        since: str = "",
        until: str = "",
        topic_prefix: str = "",
        request: str = "{{ ti.dag_id }}/{{ ti.run_id }}/{{ ti.task_id }}/{{ ti.map_index }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.first_batch = first_batch
        self.last_batch = last_batch
        self.since = since
        self.until = until
        self.topic_prefix = topic_prefix
        self.request = request

    def options(self) -> Mapping[str, Any]:
        """Return the range, the prefix and the request's id."""
        numbers = {name: to_integer(name, getattr(self, name)) for name in ("first_batch", "last_batch")}
        chosen = {name: number for name, number in numbers.items() if number is not None}
        texts = {name: getattr(self, name) for name in ("since", "until", "topic_prefix", "request")}
        return {**chosen, **{name: str(text) for name, text in texts.items() if text and text != "None"}}


class CdcCompareTopicsOperator(SparkStageOperator):
    """Compares topics with mirrors: the last event of each key with the mirror's row, in both directions.

    Run it when all captured changes are merged and published, and nothing else writes to the topics. XCom has
    ``differences`` per table, the log some keys. No value is shown.

    Args:
        max_differences: Fail if more rows than this differ; None only reports.
        topic_prefix: Prefix of the topics instead of the connector's: that of a parallel connector, or of a
            replay (templated).
        topics: By table, the topics with its events, if their names differ from the declaration's
            (templated).
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "compare_topics"
    template_fields: Sequence[str] = (*SparkStageOperator.template_fields, "topic_prefix", "topics")

    def __init__(
        self,
        *,
        max_differences: int | None = 0,
        topic_prefix: str = "",
        topics: Mapping[str, Sequence[str]] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_differences = max_differences
        self.topic_prefix = topic_prefix
        self.topics = topics

    def options(self) -> Mapping[str, Any]:
        """Return the prefix and the topics."""
        topics = to_mapping("topics", self.topics)
        return {
            **({"topic_prefix": self.topic_prefix} if self.topic_prefix else {}),
            **({"topics": topics} if topics else {}),
        }

    def accepts(self, result: JobResult) -> bool:
        """Accept a result with at most ``max_differences``."""
        return few_differences(result, self.max_differences)
