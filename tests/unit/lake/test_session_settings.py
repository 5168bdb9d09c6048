from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session, settings

EXTENSIONS = "spark.sql.extensions"
ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def connector(**lake: Any) -> Connector:
    return Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb", "conn_id": "unused"}, "lake": lake}
    )


LOCAL = {"type": "hadoop", "warehouse": "file:///tmp/lake"}


def test_catalog_options_declare_the_catalog() -> None:
    found = settings(connector(catalog="house", catalog_options=LOCAL), {})
    assert found["spark.sql.catalog.house"] == "org.apache.iceberg.spark.SparkCatalog"
    assert found["spark.sql.catalog.house.type"] == "hadoop"
    assert found["spark.sql.catalog.house.warehouse"] == "file:///tmp/lake"
    assert found["spark.sql.catalog.house.cache-enabled"] == "false"


@pytest.mark.parametrize("where", ["present", "extra"])
def test_a_catalog_that_spark_declares_needs_no_options(where: str) -> None:
    declared = {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}
    present, extra = (declared, {}) if where == "present" else ({}, declared)
    assert settings(connector(), present, extra)


def test_a_catalog_that_nothing_declares_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"catalog lake: expected option lake\.catalog_options"):
        settings(connector(), {})


@pytest.mark.parametrize(
    ("present", "expected"),
    [("", ICEBERG), ("a.B", f"a.B,{ICEBERG}"), (f"{ICEBERG},a.B", f"{ICEBERG},a.B")],
)
def test_iceberg_joins_the_extensions_that_are_there(present: str, expected: str) -> None:
    have = {EXTENSIONS: present} if present else {}
    assert settings(connector(catalog_options=LOCAL), have)[EXTENSIONS] == expected


def test_workers_use_this_python_and_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    found = settings(connector(catalog_options=LOCAL), {})
    assert found["spark.pyspark.python"] == sys.executable
    assert found["spark.python.unix.domain.socket.enabled"] == "true"


def test_the_time_zone_is_always_utc() -> None:
    zone = "spark.sql.session.timeZone"
    assert settings(connector(catalog_options=LOCAL), {}, {zone: "Europe/Berlin"})[zone] == "UTC"


@pytest.mark.parametrize("home", [None, "missing"])
def test_no_java_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(ConfigurationError, match=r"needs Java, which is not installed.*install a JRE"):
        build_session(connector(catalog_options=LOCAL), "test")


class Session:
    """As much of a session as is looked at before the lake is touched."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self.conf = dict(conf)


@pytest.mark.parametrize("conf", [{}, {"spark.sql.catalog.lake.cache-enabled": "true"}])
def test_a_catalog_that_caches_tables_is_refused(conf: Mapping[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="caches tables"):
        build_lake(Session(conf), connector())


def test_pyspark_sends_no_callers_line_with_each_call_of_a_column() -> None:
    found = settings(connector(catalog_options=LOCAL), {})
    assert found["spark.python.sql.dataFrameDebugging.enabled"] == "false"


HADOOP = {"type": "hadoop"}


@pytest.mark.parametrize(
    ("catalog", "refused"),
    [
        ({**HADOOP, "warehouse": "s3a://lake/house"}, True),
        ({"catalog-impl": "org.apache.iceberg.hadoop.HadoopCatalog", "warehouse": "ABFSS://c@a/house"}, True),
        ({**HADOOP, "warehouse": "hdfs://namenode/house"}, False),
        ({**HADOOP, "warehouse": "file:///tmp/lake"}, False),
        ({"type": "rest", "warehouse": "s3://lake/house"}, False),
    ],
)
def test_a_catalog_that_misses_other_commits_is_only_for_a_single_writer(
    catalog: Mapping[str, str], refused: bool
) -> None:
    conf = {f"spark.sql.catalog.lake.{name}": value for name, value in catalog.items()}
    session = Session({**conf, "spark.sql.catalog.lake.cache-enabled": "false"})
    if refused:
        with pytest.raises(ConfigurationError, match=r"would lose .* type hadoop on .*single_writer: true"):
            build_lake(session, connector())
    assert build_lake(session, connector(single_writer=refused)).catalog == "lake"
