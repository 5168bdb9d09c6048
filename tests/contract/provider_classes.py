"""The operators and sensors of the provider, and one of each."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_cdc_provider.get_provider_info import get_provider_info

INFO = get_provider_info()
CONNECTOR: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "cassandra", "conn_id": "c", "cdc_raw": "/raw"},
}
MONGO: dict[str, Any] = {"name": "shop", "source": {"type": "mongodb", "conn_id": "m"}}
SCYLLA: dict[str, Any] = {"name": "shop", "source": {"type": "scylla", "conn_id": "s"}}
VITESS: dict[str, Any] = {"name": "shop", "source": {"type": "vitess", "conn_id": "v", "keyspace": "shop"}}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "CdcConsumerLagSensor": {"group_id": "{{ params.group }}"},
    "CdcSignalOperator": {"signal": "{{ params.signal }}"},
    "CdcSnapshotOperator": {"tables": "{{ params.table }}"},
    "CommitLogTransferOperator": {"cdc_raw": "/raw", "host_id": "h"},
    "MongodbLagSensor": {"max_lag_seconds": 5},
    "ScyllaLagSensor": {"max_lag_seconds": 60},
    "VitessLagSensor": {"max_lag_seconds": 5},
}


def load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def modules(*kinds: str) -> list[str]:
    return [name for kind in kinds for entry in INFO[kind] for name in entry["python-modules"]]


def classes(kind: str) -> Iterator[type[BaseOperator]]:
    for name in modules(kind):
        module = importlib.import_module(name)
        for found in vars(module).values():
            own = inspect.isclass(found) and found.__module__ == name and not found.__name__.startswith("_")
            if own and issubclass(found, BaseOperator):
                yield found


OPERATORS = [*classes("operators"), *classes("sensors")]


def make(cls: type[BaseOperator], **arguments: Any) -> BaseOperator:
    arguments = {"task_id": "task", **ARGUMENTS.get(cls.__name__, {}), **arguments}
    if "connector" in inspect.signature(cls).parameters or any(
        "connector" in inspect.signature(base).parameters for base in cls.__mro__ if base is not object
    ):
        own = {"Mongodb": MONGO, "Scylla": SCYLLA, "Vitess": VITESS}
        fits = (connector for kind, connector in own.items() if cls.__name__.startswith(kind))
        arguments.setdefault("connector", next(fits, CONNECTOR))
    return cls(**arguments)
