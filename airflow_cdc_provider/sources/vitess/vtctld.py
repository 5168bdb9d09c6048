"""Requests the first position from vtctld, as Debezium's older connectors did.

VTGate provides the same with a short stream (:func:`.requests.current_position`). vtctld is only used if the
connection names one.

The request is for the positions of a shard's tablets (``vtctlservice.Vtctld/ShardReplicationPositions``). Of
several tablets of the type to read, the one with the fewest transactions is used: VTGate may read any of
them, and all of them have these transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues, Vtctld
from airflow_cdc_provider.sources.vitess.failures import failure
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition

_METHOD: Final = "/vtctlservice.Vtctld/ShardReplicationPositions"


def vtctld_position(
    values: ConnectionValues, vtctld: Vtctld, shards: Sequence[str], tablet_type: str, seconds: float
) -> Position:
    """Request the position of shards from vtctld.

    Args:
        values: The connection, whose TLS settings also apply to vtctld.
        vtctld: Address and login of vtctld.
        shards: Shard names, ``keyspace/shard``.
        tablet_type: Type of the tablets to read.
        seconds: Timeout of each call.

    Returns:
        The position, without epochs.

    Raises:
        ConfigurationError: The login is rejected, or vtctld doesn't know the shard.
        TransientError: vtctld doesn't answer, or no tablet of the type reports its position.
    """
    with vtctld.channel(values) as channel:
        call: Any = channel.unary_unary(_METHOD)
        positions = {s: ShardPosition(_position(call, vtctld, s, tablet_type, seconds)) for s in shards}
    return Position(positions)


def _position(call: Any, vtctld: Vtctld, shard: str, tablet_type: str, seconds: float) -> str:
    keyspace, _, name = shard.partition("/")
    request = protocol.ShardReplicationPositionsRequest(keyspace=keyspace, shard=name)
    try:
        answer = call(request.SerializeToString(), seconds, metadata=vtctld.metadata)
    except grpc.RpcError as error:
        doing = f"vtctld at {vtctld.host}:{vtctld.port} doesn't return the positions of {shard}"
        raise failure(doing, error.code().name, error.details() or "") from None
    response = protocol.parse(protocol.ShardReplicationPositionsResponse, answer)
    type_number = protocol.TABLET_TYPES[tablet_type]
    positions = [
        response.replication_statuses[alias].position
        for alias, tablet in response.tablet_map.items()
        if tablet.type == type_number and alias in response.replication_statuses
    ]
    if not any(positions):
        # The first name of a number is the current one: MASTER is an old name of PRIMARY.
        types = {number: kind for kind, number in reversed(protocol.TABLET_TYPES.items())}
        raise TransientError(
            f"vtctld at {vtctld.host}:{vtctld.port} has no position of {shard}",
            expected=f"the position of a tablet of type {tablet_type}",
            found=", ".join(sorted(f"{a} ({types[t.type]})" for a, t in response.tablet_map.items()))
            or "no tablet",
            remedy="make sure that such a tablet serves, or remove vtctld_host: VTGate provides it too",
        )
    return min(filter(None, positions), key=lambda gtid: GtidSet.parse(gtid).count)
