"""The hook of a connector, its checks, and its connection with the secrets of the declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spec import DECLARED
from airflow_cdc_provider.lake.warehouse import require_atomic_commits
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook
    from airflow_cdc_provider.hooks.source import CdcHook
    from airflow_cdc_provider.sources.contract import Finding, Source


def hook_for(connector: Connector, conn_id: str | None = None) -> CdcHook:
    """Return the hook of a connector's source.

    Args:
        connector: The connector.
        conn_id: Connection to use instead of the declared one.

    Raises:
        ConfigurationError: Neither names a connection.
    """
    plugin = source_plugin(connector.type)
    if not plugin.hook:
        raise ConfigurationError(f"source {connector.type} has no connections", remedy="remove conn_id")
    conn_id = conn_id or connector.source.conn_id
    if not conn_id:
        raise ConfigurationError(
            f"connector {connector.name} names no connection",
            expected=f"option source.conn_id with a connection of type {plugin.connection_type}",
        )
    hook: CdcHook = load_custom(f"the hook of source {connector.type}", plugin.hook)(conn_id)
    hook.configure(connector)
    return hook


def check_connector(connector: Connector, source: Source) -> list[Finding]:
    """Check the source's prerequisites, the lake, channels' topics, and the number of tables."""
    from airflow_cdc_provider.connections.channel_topics import channel_findings
    from airflow_cdc_provider.connections.plain_logins import plain_logins
    from airflow_cdc_provider.sources.contract import Finding

    findings = [*source.check(), *plain_logins(connector), *channel_findings(connector)]
    try:
        require_atomic_commits(connector, connector.lake.catalog_options)
    except ConfigurationError as error:
        findings.append(Finding("error", "lake", str(error)))
    if any(finding.level == "error" for finding in findings):
        return findings
    tables = source.tables()
    for table, shared in connector.shared_names(tables).items():
        left_out = f"it is left out unless it has a mirror: {shared.message}"
        findings.append(Finding("warning", table, left_out, shared.remedy))
    for unmatched in connector.unmatched(tables) if tables else ():
        remedy = "correct the name, create the table, or enable its capture; the others are captured"
        findings.append(Finding("warning", "tables", unmatched, remedy))
    findings += _shared_topics(connector, tables)
    if text := connector.guardrail_message(tables):
        level: Literal["warning", "error"] = "error" if connector.guardrail.action == "fail" else "warning"
        findings.append(
            Finding(level, "guardrail", text, "check tables and exclude_tables, or raise the limit")
        )
    return findings


def _shared_topics(connector: Connector, tables: Sequence[str]) -> Iterator[Finding]:
    """Report tables whose topics, or schemas, have one name, and topics that brokers take for one."""
    from airflow_cdc_provider.sources.contract import Finding
    from airflow_cdc_provider.sources.encoding import topic_claim, topic_of_table

    if not connector.publish.kafka.connection:
        return
    topics = {table: topic_of_table(connector, table) for table in tables}
    brokers = {table: (topic.replace(".", "_"), topic) for table, topic in topics.items()}
    schemas = {table: topic_claim(connector, table) for table in tables}
    for problem, claims in (
        ("only the table that is recorded first is published", schemas),
        ("brokers refuse one of the names", brokers),
    ):
        groups: dict[str, list[str]] = {}
        for table, (name, _) in claims.items():
            groups.setdefault(name, []).append(table)
        for group in groups.values():
            if len({claims[table][1] for table in group}) > 1:
                named = ", ".join(f"{topics[table]} of {table}" for table in group)
                yield Finding("warning", "topics", f"{problem}: {named}", "set publish.topic_naming")


def with_secrets(connector: Connector, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's values with the secrets that the declaration has literally; its spec has none."""
    secrets = connector.split_secrets()[1]
    return {**values, DECLARED: secrets} if secrets else dict(values)


def cassandra_hook(connector: Connector, conn_id: str | None) -> CassandraCdcHook:
    """Return the hook of a connector with a Cassandra source.

    Raises:
        ConfigurationError: The connector has another source, or no connection.
    """
    from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook

    options_of(connector, CassandraOptions)
    hook = hook_for(connector, conn_id)
    assert isinstance(hook, CassandraCdcHook)
    return hook
