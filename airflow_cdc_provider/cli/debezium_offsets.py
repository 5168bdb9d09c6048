"""Offsets that Debezium's connectors have stored: ``airflow cdc offsets import`` and ``export``.

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
    """What becomes of offsets of Debezium.

    Args:
        offset: The connector's; None: its capture begins as at first.
        remarks: What a person should know, in sentences.
    """

    offset: dict[str, Any] | None
    remarks: tuple[str, ...] = ()


def imported(
    connector: Connector, content: bytes, *, allow_invalidation: bool, host_id: str = ""
) -> Imported | None:
    """Read a file's offset for a connector; None if it is none of Debezium's.

    Args:
        connector: The declaration.
        content: The file's bytes.
        allow_invalidation: MongoDB: whether offsets of single shards may be given up for the oldest's time.
        host_id: Cassandra: the node that the file is of.

    Raises:
        ConfigurationError: The file has no offset of this connector, or one that can't be gone on from.
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
    """Write a connector's offset as ``PATCH /connectors/NAME/offsets`` of Kafka Connect takes it.

    Raises:
        ConfigurationError: It is of another source than Vitess and ScyllaDB, or there is no place yet.
    """
    if connector.type == "scylla":
        return _to_scylla(connector, offset)
    from airflow_cdc_provider.sources.connect_offsets import to_rest
    from airflow_cdc_provider.sources.vitess.debezium_offset import layout_of, to_debezium
    from airflow_cdc_provider.sources.vitess.position import Position

    options = _vitess_options(connector)
    position = Position.from_offset(offset)
    if not position.is_real:
        raise ConfigurationError("shards have no place yet", remedy="run a capture first")
    return to_rest(to_debezium(position, connector.topic_prefix, layout_of(options)))


def moved_to_generation(connector: Connector, content: bytes) -> str:
    """Write offsets of Debezium's tasks for the generation that the declaration tells, copies kept.

    Raises:
        ConfigurationError: They don't fit what the declaration says of tasks.
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
            "offsets are written for connectors of Vitess and ScyllaDB alone",
            expected="a connector of type vitess, or scylla without --moved-from",
            found=connector.type,
        )
    return connector.source


def _of_vitess(connector: Connector, content: bytes) -> Imported | None:
    from airflow_cdc_provider.sources.vitess.debezium_offset import is_debeziums, position_of, read_offsets

    if not is_debeziums(content):
        return None
    options = _vitess_options(connector)
    position, remarks = position_of(
        read_offsets(content), connector.topic_prefix, options, lambda: _vitess_shards(connector, options)
    )
    return Imported(position.to_offset(), remarks)


def _vitess_shards(connector: Connector, options: VitessOptions) -> list[str]:
    """List the shards that are read, ``keyspace/shard``: those of the options, else all that serve."""
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
    from airflow_cdc_provider.sources.cassandra.commit_log.debezium_offset import is_debeziums, position_of
    from airflow_cdc_provider.sources.cassandra.commit_log.offsets import write_offset

    if not is_debeziums(content):
        return None
    if not host_id:
        raise ConfigurationError(
            "the file doesn't say which node it is of",
            expected="--host-id with the node's host id, as nodetool info prints it",
        )
    node, remarks = position_of(content)
    return Imported(dict(write_offset({host_id: node})), remarks)


def _of_scylla(connector: Connector, content: bytes) -> Imported | None:
    from airflow_cdc_provider.sources.scylla.connect_offset import (
        is_the_connectors,
        positions_of,
        read_offsets,
    )
    from airflow_cdc_provider.sources.scylla.position import write_offset

    if not is_the_connectors(content):
        return None
    offsets = read_offsets(content)
    with _scylla_logs(connector) as logs:
        positions, remarks = positions_of(offsets, logs)
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
    """Look at the cluster; the streams of a generation are asked for when they are needed."""
    from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
    from airflow_cdc_provider.hooks.source import hook_for
    from airflow_cdc_provider.sources.scylla.log_state import look_at_logs

    hook = hook_for(connector)
    assert isinstance(hook, ScyllaCdcHook)
    with hook as session:
        yield look_at_logs(session, _scylla_options(connector).advanced, connector.selects)


def _scylla_options(connector: Connector) -> ScyllaOptions:
    assert isinstance(connector.source, ScyllaOptions)
    return connector.source


def _of_mongodb(connector: Connector, content: bytes, *, allow_invalidation: bool) -> Imported | None:
    from airflow_cdc_provider.sources.mongodb.debezium_offset import (
        is_debeziums,
        place_of,
        read_offsets,
        remarks,
    )

    if not is_debeziums(content):
        return None
    offsets = read_offsets(content)
    place = place_of(
        offsets,
        connector.topic_prefix,
        shards=lambda: _mongodb_shards(connector),
        allow_invalidation=allow_invalidation,
    )
    told = tuple(remarks(offsets))
    if place is None:
        return Imported(None, (*told, "a shard has no offset: capture begins as at first, with a snapshot"))
    return Imported(place.to_offset(), told)


def _mongodb_shards(connector: Connector) -> list[str] | None:
    from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook
    from airflow_cdc_provider.hooks.source import hook_for
    from airflow_cdc_provider.sources.mongodb.shards import shard_names

    hook = hook_for(connector)
    assert isinstance(hook, MongodbCdcHook)
    with hook as client:
        return shard_names(client)
