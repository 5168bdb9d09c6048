"""Operators on a connector's topics: made, sent to once more, and compared with mirrors.

Publishing itself is a stage of its own, or the last step of a sync: :mod:`.stages`.

Example::

    again = CdcReplayOperator(
        task_id="again", connector="shop.yaml", since="2026-11-23T08:00Z", topic_prefix="replay.shop"
    )
    same = CdcCompareTopicsOperator(task_id="same", connector="shop.yaml")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.hooks.failures import for_airflow
from airflow_cdc_provider.hooks.kafka import kafka_values
from airflow_cdc_provider.hooks.parameters import to_mapping, to_number
from airflow_cdc_provider.hooks.source import ConnectorLike, hook_for, to_connector
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.operators.stages import few_differences

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class CdcCreateTopicsOperator(BaseOperator):
    """Makes the topics of a connector's tables that are missing, without Spark: before the first publishing.

    Publishing makes a topic before its first record anyhow; this is for consumers that must find all topics,
    and for connectors with ``publish.topics.create: false`` whose topics are to be made by one task with the
    right to. Topics that transforms route events to aren't known before. Those that are there stay as they
    are; what they have otherwise than declared is logged. XCom: ``made`` and ``there``, lists of topics.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        source_conn_id: Connection of the source, which is asked for its tables, in place of the declared one
            (templated).
        kafka_conn_id: Connection of the brokers in place of the declared one (templated).
    """

    template_fields: Sequence[str] = ("connector", "source_conn_id", "kafka_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json"}
    operator_extra_links = (ConnectorAssetsLink(),)
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        source_conn_id: str | None = None,
        kafka_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.connector = connector
        self.source_conn_id = source_conn_id
        self.kafka_conn_id = kafka_conn_id

    def execute(self, context: Context) -> dict[str, list[str]]:
        """Make them.

        Raises:
            AirflowFailException: A person must change something.
            CdcError: What a retry may get over.
        """
        try:
            created = create_missing(to_connector(self.connector), self.source_conn_id, self.kafka_conn_id)
        except CdcError as error:
            raise for_airflow(error) from None
        for topic in created["made"]:
            self.log.info("topic %s was made", topic)
        return created


def create_missing(
    connector: Connector, source_conn_id: str | None = None, kafka_conn_id: str | None = None
) -> dict[str, list[str]]:
    """Ask the source for its tables, and make their topics.

    Args:
        connector: The declaration.
        source_conn_id: As for :class:`CdcCreateTopicsOperator`.
        kafka_conn_id: Likewise.

    Returns:
        ``made`` and ``there``.

    Raises:
        ConfigurationError: The connector publishes nothing, or something must be changed by a person.
        TransientError: The source or the brokers don't answer.
    """
    from airflow_cdc_provider.jobs.topics.rules import create_topics

    conn_id = kafka_conn_id or connector.publish.kafka.connection
    if not conn_id:
        raise ConfigurationError(
            f"connector {connector.name} publishes nothing",
            expected="publish.kafka.connection with the id of an Airflow connection of type kafka",
        )
    source = hook_for(connector, source_conn_id).source(connector)
    try:
        tables = source.tables()
    finally:
        source.close()
    created = create_topics(connector, tables, kafka_values(conn_id))
    return {name: list(topics) for name, topics in asdict(created).items()}


class CdcReplayOperator(SparkStageOperator):
    """Publishes the events of a range of batches once more, to their topics or to others.

    Where publishing stands isn't touched. A try that failed is gone on with by the next one; a task that is
    cleared after it succeeded sends all again. XCom's ``replayed`` tells batches, records and transactions.

    Args:
        first_batch: The first batch of the changes table; default: the oldest that is kept (templated).
        last_batch: The last one; default: the last that is published, with another prefix the newest
            (templated).
        since: Instead of numbers: batches committed from this time on, ISO 8601 (templated).
        until: Likewise: up to this time (templated).
        topic_prefix: Topics begin with this in place of the connector's prefix; empty: the same topics
            (templated).
        request: Names the request; default: dag, run and task (templated).
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
        """Return the range, the prefix and the request's name."""
        numbers = {name: to_number(name, getattr(self, name)) for name in ("first_batch", "last_batch")}
        chosen = {name: int(number) for name, number in numbers.items() if number is not None}
        texts = {name: getattr(self, name) for name in ("since", "until", "topic_prefix", "request")}
        return {**chosen, **{name: text for name, text in texts.items() if text and text != "None"}}


class CdcCompareTopicsOperator(SparkStageOperator):
    """Compares topics with mirrors: the last event of each key with the mirror's row, in both directions.

    Run it when all that is captured is merged and published, and nothing else writes to the topics. XCom
    shows ``differences`` per table, the log some keys. No value is shown.

    Args:
        max_differences: Fail when more rows than this differ; None only reports.
        topic_prefix: Topics begin with this in place of the connector's prefix: those of another connector
            beside this one, or of a replay (templated).
        topics: By table, the topics that have its events, where they aren't named as the declaration says
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
        """Return where the events are."""
        topics = to_mapping("topics", self.topics)
        return {
            **({"topic_prefix": self.topic_prefix} if self.topic_prefix else {}),
            **({"topics": topics} if topics else {}),
        }

    def accepts(self, result: JobResult) -> bool:
        """Accept what differs by no more than is allowed."""
        return few_differences(result, self.max_differences)
