"""DAGs with ``render_template_as_native_obj``, where Airflow turns a text like a literal into its value."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider import operators, sensors
from airflow_cdc_provider.connector.declaration import to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.operators.signal import CdcSignalOperator
from airflow_cdc_provider.operators.stages import CdcOffsetsOperator, CdcSnapshotOperator
from airflow_cdc_provider.operators.topics import CdcReplayOperator
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from airflow_cdc_provider.sensors.topics import CdcConsumerLagSensor
from airflow_cdc_provider.tasks.parameters import _TEXTS, NativeRendering, to_tables
from tests.unit.fake_spark import DECLARATION

LITERALS = (
    "2024",
    "1.10",
    "1e3",
    "True",
    "None",
    "0x10",
    "1_000",
    "007",
    "[1, 2]",
    "'x'",
    "-5",
    "(1,)",
    "{}",
)


def rendered(kind: Any, native: bool = True, params: Any = None, **arguments: Any) -> Any:
    """Return a task whose templates are rendered, as before its execution."""
    with DAG("shop", schedule=None, render_template_as_native_obj=native):
        task = kind(task_id="task", **{"connector": DECLARATION, **arguments})
    instance = SimpleNamespace(dag_id="shop", run_id="run", task_id="task", map_index=-1)
    task.render_template_fields({"params": params or {}, "ti": instance})
    return task


def declared(**publish: Any) -> dict[str, Any]:
    return {**DECLARATION, "name": publish.pop("name", "shop"), "publish": publish}


@pytest.mark.parametrize("text", LITERALS)
def test_a_text_without_a_template_stays_a_text(text: str) -> None:
    arguments: dict[str, Any] = {"cdc_raw": "/raw", "host_id": text, "landing": text}
    task = rendered(CommitLogTransferOperator, **arguments)
    assert (task.host_id, task.landing) == (text, text)
    replay = rendered(CdcReplayOperator, connector=declared(version=text), topic_prefix=text, since=text)
    assert to_connector(replay.connector).publish.version == text
    assert (replay.topic_prefix, replay.since) == (text, text)


@given(number=st.integers())
@example(number=2024)
def test_a_number_is_its_text_again_where_text_is_declared(number: int) -> None:
    params = {"given": str(number)}
    task = rendered(CdcConsumerLagSensor, params=params, group_id="{{ params.given }}", max_lag="3")
    assert task.group_id == str(number)
    declaration = declared(version="{{ params.given }}", task_id="{{ params.given }}")
    snapshot = rendered(
        CdcSnapshotOperator, params=params, connector=declaration, tables="{{ params.given }}"
    )
    publish = to_connector(snapshot.connector).publish
    assert (publish.version, publish.task_id) == (str(number), str(number))
    assert to_tables(snapshot.tables) == (str(number),)


def test_every_template_field_that_an_operator_or_sensor_declares_as_text_is_one() -> None:
    found = set()
    for package in (operators, sensors):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for kind in vars(importlib.import_module(module.name)).values():
                if isinstance(kind, type) and issubclass(kind, NativeRendering):
                    declared = inspect.signature(kind.__init__).parameters
                    found |= {
                        name
                        for name in getattr(kind, "template_fields", ())
                        if name in declared and declared[name].annotation in ("str", "str | None")
                    }
    assert len(found) > 10
    assert found <= _TEXTS | {"cdc_raw"}  # a path, or in other operators several


def test_a_number_stays_a_number_where_a_number_is_declared() -> None:
    task = rendered(CdcOffsetsOperator, action="publish", batch="{{ 4 }}")
    assert task.options() == {"action": "publish", "batch": 4}


@pytest.mark.parametrize("text", ["1.10", "True", "[1, 2]", "{'a': 1}"])
def test_what_no_text_can_be_restored_from_names_the_flag(text: str) -> None:
    params = {"given": text}
    flag = "render_template_as_native_obj"
    with pytest.raises(AirflowFailException, match=rf"invalid value for signal_id: .*{flag}"):
        rendered(CdcSignalOperator, params=params, signal="log", signal_id="{{ params.given }}")
    declaration = declared(version="{{ params.given }}")
    task = rendered(CdcSnapshotOperator, params=params, connector=declaration, tables="a.b")
    with pytest.raises(ConfigurationError, match=rf"option publish\.version: .*{flag}"):
        to_connector(task.connector)
    if not text.startswith("["):
        with pytest.raises(ConfigurationError, match=rf"invalid value for tables: .*{flag}"):
            to_tables(rendered(CdcSnapshotOperator, params=params, tables="{{ params.given }}").tables)


@pytest.mark.parametrize("native", [False, True])
def test_lists_mappings_and_null_are_accepted_in_both_forms(native: bool) -> None:
    params = {"tables": ["shop.orders", "shop.items"], "data": {"type": "incremental"}, "none": None}
    task = rendered(
        CdcSignalOperator,
        native,
        params,
        signal="execute-snapshot",
        tables="{{ params.tables }}",
        data="{{ params.data }}",
        signal_id="{{ params.none or '' }}",
    )
    assert to_tables(task.tables) == ("shop.orders", "shop.items")
    assert not task.signal_id
    assert to_tables(rendered(CdcSnapshotOperator, native, tables="{{ none or '' }}").tables) == ()
