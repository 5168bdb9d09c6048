"""vtctld asked for the first position: how Debezium's older connectors began.

VTGate tells the same by a short stream (:func:`.requests.current_position`). This way is for whoever has it
set up, and takes it only where the connection names a vtctld.

vtctld is asked for the positions of a shard's tablets (``vtctlservice.Vtctld/ShardReplicationPositions``).
Of several tablets of the type that is read, the one that is least ahead counts: VTGate may read any of them,
and each has what that one has.
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
from airflow_cdc_provider.sources.vitess.position import Position, ShardPlace

_METHOD: Final = "/vtctlservice.Vtctld/ShardReplicationPositions"


def vtctld_position(
    values: ConnectionValues, vtctld: Vtctld, shards: Sequence[str], tablet_type: str, seconds: float
) -> Position:
    """Ask vtctld where shards stand.

    Args:
        values: The connection, whose TLS is vtctld's too.
        vtctld: Where it listens, and the login.
        shards: ``keyspace/shard``.
        tablet_type: Type of the tablets that are read.
        seconds: When to give up each call.

    Raises:
        ConfigurationError: The login is refused, or vtctld doesn't know the shard.
        TransientError: It doesn't answer, or no tablet of the type tells its position.
    """
    with vtctld.channel(values) as channel:
        call: Any = channel.unary_unary(_METHOD)
        places = {shard: ShardPlace(_position(call, vtctld, shard, tablet_type, seconds)) for shard in shards}
    return Position(places)


def _position(call: Any, vtctld: Vtctld, shard: str, tablet_type: str, seconds: float) -> str:
    keyspace, _, name = shard.partition("/")
    request = protocol.ShardReplicationPositionsRequest(keyspace=keyspace, shard=name)
    try:
        answer = call(request.SerializeToString(), seconds, metadata=vtctld.metadata)
    except grpc.RpcError as error:
        doing = f"vtctld at {vtctld.host}:{vtctld.port} doesn't tell the positions of {shard}"
        raise failure(doing, error.code().name, error.details() or "", (vtctld.password,)) from None
    response = protocol.ShardReplicationPositionsResponse.FromString(answer)
    wanted = protocol.TABLET_TYPES[tablet_type]
    told = [
        response.replication_statuses[alias].position
        for alias, tablet in response.tablet_map.items()
        if tablet.type == wanted and alias in response.replication_statuses
    ]
    if not any(told):
        # Of names for one number the first one is today's: MASTER is an old one of PRIMARY.
        types = {number: kind for kind, number in reversed(protocol.TABLET_TYPES.items())}
        raise TransientError(
            f"vtctld at {vtctld.host}:{vtctld.port} has no position of {shard}",
            expected=f"one of a tablet of type {tablet_type}",
            found=", ".join(sorted(f"{a} ({types[t.type]})" for a, t in response.tablet_map.items()))
            or "no tablet",
            remedy="see that such a tablet serves, or leave vtctld_host out: VTGate tells the position too",
        )
    return min(filter(None, told), key=lambda gtid: GtidSet.parse(gtid).count)
