"""Headers of records: Debezium's context headers, constant in a run, and the node of an event.

Consumers of other connectors' events ignore unknown headers.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.events.json_converter import quote

NODE: Final = "cdc.node"
"""Header: the node whose log contains the change."""


def context_headers(
    logical_name: str, task_id: str, connector: str, run_id: str
) -> tuple[tuple[str, str], ...]:
    """Return names and JSON of Debezium's context headers, in its order.

    All data records and tombstones of a run have these headers.

    Args:
        logical_name: The topic prefix.
        task_id: The task's number, as text.
        connector: ``mongodb``, ``cassandra`` ...
        run_id: A UUID, new for each run.
    """
    values = {
        "connectorLogicalName": logical_name,
        "taskId": task_id,
        "connectorName": connector,
        "runId": run_id,
    }
    return tuple(
        (f"__debezium.context.{name}", json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    )


def node_headers(events: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the header with each event's node, by header name.

    Args:
        events: Column ``node`` has the node's host ID, null for events without a single node. Without the
            column no header is added.
    """
    return {NODE: quote(events["node"])} if "node" in events.schema.names else {}
