"""A fake vtctld that answers with given values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.protocol import TABLET_TYPES
from tests.unit.sources.vitess.fake_vtgate import gtid

TABLETS = {
    "-80": {"z-100": ("PRIMARY", gtid(9)), "z-101": ("REPLICA", gtid(7)), "z-102": ("REPLICA", gtid(6))},
    "80-": {"z-200": ("PRIMARY", gtid(19)), "z-201": ("REPLICA", gtid(18)), "z-202": ("RDONLY", "")},
}


class FakeVtctld:
    """Serves ``ShardReplicationPositions`` on a free port, and records requests.

    Args:
        login: Required user and password; None for no login.
    """

    def __init__(self, login: tuple[str, str] | None = None) -> None:
        self.requested: list[tuple[str, str]] = []
        self.metadata: list[dict[str, str]] = []
        self._login = login
        self._server = grpc.server(ThreadPoolExecutor(2))
        handlers: dict[str, Any] = {
            "ShardReplicationPositions": grpc.unary_unary_rpc_method_handler(self._positions)
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("vtctlservice.Vtctld", handlers),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _positions(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = protocol.ShardReplicationPositionsRequest.FromString(data)
        self.requested.append((request.keyspace, request.shard))
        sent = {name: str(value) for name, value in context.invocation_metadata()}
        self.metadata.append(sent)
        if self._login and (sent.get("username"), sent.get("password")) != self._login:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "username and password must be provided")
        answer = protocol.ShardReplicationPositionsResponse()
        for alias, (kind, position) in TABLETS[request.shard].items():
            answer.tablet_map[alias].type = TABLET_TYPES[kind]
            answer.replication_statuses[alias].position = position
        made: bytes = answer.SerializeToString()
        return made
