r"""Signal a connector's running stream to take an incremental snapshot, or to pause, resume or stop it.

Press Trigger, choose the signal and, for a snapshot, the collections: regular expressions of
database.collection.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_cdc_provider.operators.signal import CdcSignalOperator
from airflow_cdc_provider.signals.signal import TYPES

STORE = str(Path(__file__).with_name("shop_mongodb.yaml"))

with DAG(
    "signal_a_stream",
    schedule=None,
    params={
        "signal": Param("execute-snapshot", enum=list(TYPES)),
        "tables": Param(r"store\.customers", type=["string", "null"]),
        "data": Param({"type": "incremental"}, type="object"),
    },
    tags=["cdc"],
    doc_md=__doc__,
):
    CdcSignalOperator(
        task_id="signal",
        connector=STORE,
        signal="{{ params.signal }}",
        tables="{{ params.tables or '' }}",
        data="{{ params.data | tojson }}",
    )
