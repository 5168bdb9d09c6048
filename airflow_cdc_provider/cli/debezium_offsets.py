"""Conversion of offsets stored by Debezium connectors, for ``airflow cdc offsets import`` and ``export``.

ScyllaDB's source connector is built on Debezium.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.scylla.log_state import LogState


@dataclass(frozen=True)
class Imported:
    """An offset converted from Debezium's.

    Args:
        offset: Offset of the connector; None: capture starts over.
        remarks: Notes for the user, one sentence each.
    """

    offset: dict[str, Any] | None
    remarks: tuple[str, ...] = ()


def imported(
    connector: Connector, content: bytes, *, allow_invalidation: bool, host_id: str = ""
) -> Imported | None:
    """Convert an offset file of Debezium.

    Args:
        connector: The connector declaration.
        content: Content of the file.
        allow_invalidation: MongoDB: whether offsets per shard may be discarded in favor of the oldest's time.
        host_id: Cassandra: host ID of the node that the file belongs to.

    Returns:
        The offset; None if the file was not written by Debezium.

    Raises:
        ConfigurationError: The file has no offset of this connector, or one that capture can't resume from.
    """
    if connector.type == "mongodb":
        return _of_mongodb(connector, content, allow_invalidation=allow_invalidation)
    if connector.type == "vitess":
        return _of_vitess(connector, content)
    if connector.type == "scylla":
        return _of_scylla(connector, content)
    if connector.type == "cassandra":
        return _of_cassandra(content, host_id)
    return None


def exported(connector: Connector, offset: Mapping[str, Any]) -> str:
    """Convert a connector's offset to the body of Kafka Connect's ``PATCH /connectors/NAME/offsets``.

    Raises:
        ConfigurationError: The source is neither Vitess nor ScyllaDB, or there is no position yet.
    """
    if connector.type == "scylla":
        return _to_scylla(connector, offset)
    from airflow_cdc_provider.sources.connect_offsets import to_rest
    from airflow_cdc_provider.sources.vitess.debezium_offset import layout_of, to_debezium
    from airflow_cdc_provider.sources.vitess.position import Position

    options = _vitess_options(connector)
    position = Position.from_offset(offset)
    if not position.is_real:
        raise ConfigurationError("shards have no position yet", remedy="run a capture first")
    return to_rest(to_debezium(position, connector.topic_prefix, layout_of(options)))


def moved_to_generation(connector: Connector, content: bytes) -> str:
    """Convert offsets of Debezium tasks to the generation in the declaration; snapshots in progress are kept.

    Raises:
        ConfigurationError: The offsets don't match the declaration's task options.
    """
    from airflow_cdc_provider.sources.connect_offsets import to_rest
    from airflow_cdc_provider.sources.vitess.debezium_offset import moved, read_offsets

    options = _vitess_options(connector)
    return to_rest(
        moved(read_offsets(content), connector.topic_prefix, options, _vitess_shards(connector, options))
    )


def _vitess_options(connector: Connector) -> VitessOptions:
    if not isinstance(connector.source, VitessOptions):
        raise ConfigurationError(
            "offsets can be exported only for Vitess and ScyllaDB",
            expected="a connector of type vitess; or scylla, without --moved-from",
            found=connector.type,
        )
    return connector.source


def _of_vitess(connector: Connector, content: bytes) -> Imported | None:
    from airflow_cdc_provider.sources.vitess.debezium_offset import (
        is_debezium_offset,
        position_of,
        read_offsets,
    )

    if not is_debezium_offset(content):
        return None
    options = _vitess_options(connector)
    position, remarks = position_of(
        read_offsets(content), connector.topic_prefix, options, lambda: _vitess_shards(connector, options)
    )
    return Imported(position.to_offset(), remarks)


def _vitess_shards(connector: Connector, options: VitessOptions) -> list[str]:
    """Return the captured shards as ``keyspace/shard``: those configured, else all serving shards."""
    from airflow_cdc_provider.hooks.source import hook_for
    from airflow_cdc_provider.hooks.vitess import VitessCdcHook
    from airflow_cdc_provider.sources.vitess.requests import serving_shards

    if options.shards:
        return [f"{options.keyspace}/{shard}" for shard in options.shards]
    hook = hook_for(connector)
    assert isinstance(hook, VitessCdcHook)
    with hook as client:
        return serving_shards(client, options)


def _of_cassandra(content: bytes, host_id: str) -> Imported | None:
    from airflow_cdc_provider.sources.cassandra.commit_log.debezium_offset import (
        is_debezium_offset,
        position_of,
    )
    from airflow_cdc_provider.sources.cassandra.commit_log.offsets import write_offset

    if not is_debezium_offset(content):
        return None
    if not host_id:
        raise ConfigurationError(
            "the file does not name its node",
            expected="--host-id with the node's host ID, as printed by nodetool info",
        )
    node, remarks = position_of(content)
    return Imported(dict(write_offset({host_id: node})), remarks)


def _of_scylla(connector: Connector, content: bytes) -> Imported | None:
    from airflow_cdc_provider.sources.scylla.connect_offset import (
        has_connect_offsets,
        import_positions,
        read_offsets,
    )
    from airflow_cdc_provider.sources.scylla.position import write_offset

    if not has_connect_offsets(content):
        return None
    offsets = read_offsets(content)
    with _scylla_logs(connector) as logs:
        positions, remarks = import_positions(offsets, logs)
    return Imported(write_offset(positions), remarks)


def _to_scylla(connector: Connector, offset: Mapping[str, Any]) -> str:
    from airflow_cdc_provider.sources.connect_offsets import to_rest
    from airflow_cdc_provider.sources.scylla.connect_offset import to_connect
    from airflow_cdc_provider.sources.scylla.position import read_offset

    with _scylla_logs(connector) as logs:
        width_seconds = _scylla_options(connector).query_window_seconds
        return to_rest(to_connect(read_offset(offset), logs, width_seconds))


@contextmanager
def _scylla_logs(connector: Connector) -> Iterator[LogState]:
    """Connect to the cluster; streams of a generation are queried on demand."""
    from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
    from airflow_cdc_provider.hooks.source import hook_for
    from airflow_cdc_provider.sources.scylla.log_state import read_log_state

    hook = hook_for(connector)
    assert isinstance(hook, ScyllaCdcHook)
    with hook as session:
        yield read_log_state(session, _scylla_options(connector).advanced, connector.selects)


def _scylla_options(connector: Connector) -> ScyllaOptions:
    assert isinstance(connector.source, ScyllaOptions)
    return connector.source


def _of_mongodb(connector: Connector, content: bytes, *, allow_invalidation: bool) -> Imported | None:
    from airflow_cdc_provider.sources.mongodb.debezium_offset import (
        is_debezium_offset,
        position_of,
        read_offsets,
        remarks,
    )

    if not is_debezium_offset(content):
        return None
    offsets = read_offsets(content)
    position = position_of(
        offsets,
        connector.topic_prefix,
        shards=lambda: _mongodb_shards(connector),
        allow_invalidation=allow_invalidation,
    )
    notes = tuple(remarks(offsets))
    if position is None:
        return Imported(None, (*notes, "a shard has no offset: capture starts over with a snapshot"))
    return Imported(position.to_offset(), notes)


def _mongodb_shards(connector: Connector) -> list[str] | None:
    from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook
    from airflow_cdc_provider.hooks.source import hook_for
    from airflow_cdc_provider.sources.mongodb.shards import shard_names

    hook = hook_for(connector)
    assert isinstance(hook, MongodbCdcHook)
    with hook as client:
        return shard_names(client)
