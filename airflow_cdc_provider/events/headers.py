"""Headers of records: Debezium's, equal on all of a run, and the node that an event comes from.

Who reads another connector's events takes keys and values; a header that it doesn't know is passed over.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.events.json_converter import quote

NODE: Final = "cdc.node"
"""Header: the node whose log tells of a change."""


def context_headers(
    logical_name: str, task_id: str, connector: str, run_id: str
) -> tuple[tuple[str, str], ...]:
    """Return names and JSON texts of Debezium's context headers, in its order.

    All data records and tombstones of a run have them.

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
    """Return the header that names each event's node, by its name.

    Args:
        events: In column ``node`` the node's host id, null for an event that is of no single node. Without
            that column there is no header.
    """
    return {NODE: quote(events["node"])} if "node" in events.schema.names else {}
