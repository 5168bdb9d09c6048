"""What Airflow expects of a provider, looked at as Airflow looks."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]  # comes with Airflow, without types
import pytest
from airflow.providers.common.compat.sdk import DAG, BaseHook, BaseOperator, BaseOperatorLink

from tests.contract.provider_classes import (
    ARGUMENTS,
    CONNECTOR,
    INFO,
    MONGO,
    OPERATORS,
    SCYLLA,
    VITESS,
    load,
    make,
    modules,
)


def test_the_description_is_of_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)
    assert INFO["package-name"] == "airflow-cdc-provider"


def test_every_module_named_can_be_imported() -> None:
    for name in modules("hooks", "operators", "sensors", "triggers"):
        importlib.import_module(name)


def test_every_class_and_function_named_is_there() -> None:
    for link in INFO["extra-links"]:
        assert issubclass(load(link), BaseOperatorLink)
    for uris in INFO["asset-uris"]:
        assert callable(load(uris["handler"]))
    for command in INFO["cli"]:
        assert load(command)()


def test_hooks_agree_with_their_connection_types() -> None:
    for entry in INFO["connection-types"]:
        hook = load(entry["hook-class-name"])
        assert issubclass(hook, BaseHook)
        assert hook.conn_type == entry["connection-type"]
        assert hook.hook_name == entry["hook-name"]
        assert hook.conn_name_attr in inspect.signature(hook).parameters
        assert callable(hook.test_connection)


def test_form_fields_are_optional_and_passwords_hidden() -> None:
    for entry in INFO["connection-types"]:
        for name, field in entry["conn-fields"].items():
            assert "null" in field["schema"]["type"], f"{name} would be demanded"
            assert field["label"]
            if "password" in name.lower():
                assert field["schema"]["format"] == "password"


def test_operators_and_sensors_are_found() -> None:
    names = {cls.__name__ for cls in OPERATORS}
    assert names == {
        "CassandraRebootstrapOperator",
        "CassandraTableCdcOperator",
        "CdcCaptureOperator",
        "CdcCheckLakeOperator",
        "CdcCheckOperator",
        "CdcCompareTopicsOperator",
        "CdcConsumerLagSensor",
        "CdcCreateTopicsOperator",
        "CdcHealthOperator",
        "CdcMaintainOperator",
        "CdcMergeOperator",
        "CdcOffsetsOperator",
        "CdcPublishLagSensor",
        "CdcPublishOperator",
        "CdcRawNewSegmentsSensor",
        "CdcRawSpaceSensor",
        "CdcReplayOperator",
        "CdcSignalOperator",
        "CdcSnapshotOperator",
        "CdcSnapshotSensor",
        "CdcStreamHealthSensor",
        "CdcStreamOperator",
        "CdcSyncOperator",
        "CdcVerifyOperator",
        "CommitLogTransferOperator",
        "MongodbLagSensor",
        "MongodbNewsSensor",
        "ScyllaGenerationSensor",
        "ScyllaLagSensor",
        "VitessLagSensor",
        "VitessNewsSensor",
        "VitessReshardSensor",
    }


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_every_template_field_is_an_argument_kept_as_it_was_given(cls: type[BaseOperator]) -> None:
    known = {name for base in cls.__mro__[:-1] for name in inspect.signature(base).parameters}
    for field in cls.template_fields:
        assert field in known, f"{cls.__name__}.{field} is no argument"
        assert hasattr(make(cls), field)
    operator: Any = make(cls)
    if "connector" in cls.template_fields:
        assert operator.connector in (CONNECTOR, MONGO, SCYLLA, VITESS)


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_every_operator_survives_serialisation(cls: type[BaseOperator]) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("dag", schedule=None) as dag:
        make(cls)
    back = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert back.get_task("task").task_type == cls.__name__


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_every_operator_can_be_mapped(cls: type[BaseOperator]) -> None:
    fixed = {"task_id": "task", **ARGUMENTS.get(cls.__name__, {})}
    if "connector" in cls.template_fields:
        cls.partial(**fixed).expand(connector=[CONNECTOR])


def test_a_connector_is_taken_as_object_mapping_or_path(tmp_path: Path) -> None:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.operators.stages import CdcSyncOperator

    path = tmp_path / "shop.yaml"
    path.write_text(json.dumps(CONNECTOR))
    for given in (CONNECTOR, Connector.from_dict(CONNECTOR), str(path)):
        outlets = CdcSyncOperator(task_id="sync", connector=given).outlets
        assert [outlet.name for outlet in outlets] == ["cdc/shop/changes", "cdc/shop/mirrors"]
    assert CdcSyncOperator(task_id="sync", connector="{{ params.file }}").outlets == []


def test_only_stages_that_capture_produce_the_changes_asset() -> None:
    """Else a DAG that merges, scheduled on the asset, would start itself again and again."""
    producing = set()
    for cls in OPERATORS:
        operator: Any = make(cls)
        if any(outlet.name == "cdc/shop/changes" for outlet in operator.outlets):
            producing.add(cls.__name__)
    assert producing == {"CdcSyncOperator", "CdcCaptureOperator", "CdcSnapshotOperator"}


def test_parsing_a_dag_imports_nothing_heavy() -> None:
    names = [*modules("operators", "sensors"), "airflow_cdc_provider.pipeline", "airflow_cdc_provider.assets"]
    heavy = ["pyspark", "pyarrow", "numba", "numpy", "pandas", "cassandra", "pymongo", "bson", "py4j"]
    program = (
        "import importlib, sys\n"
        "import airflow.providers.apache.spark.operators.spark_submit, airflow.sdk\n"
        "before = set(sys.modules)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules and name not in before])\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("uri", "good"),
    [
        ("cassandra://cluster/shop/orders", True),
        ("cassandra://cluster/shop", False),
        ("cdc://shop/changes", True),
        ("cdc://shop/mirror/shop.orders", True),
        ("cdc://shop", False),
    ],
)
def test_asset_uris_are_checked(uri: str, good: bool) -> None:
    from urllib.parse import urlsplit

    scheme = uri.split(":", 1)[0]
    handler = next(load(entry["handler"]) for entry in INFO["asset-uris"] if scheme in entry["schemes"])
    if good:
        assert handler(urlsplit(uri)).geturl() == uri
    else:
        with pytest.raises(ValueError, match="expected"):
            handler(urlsplit(uri))
