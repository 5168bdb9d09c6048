"""The Spark session of a job, and the lake inside it.

:func:`build_session` starts or joins a session and adds what this package needs. What ``spark-submit``, the
cluster's ``spark-defaults.conf`` or an existing session has set already stays, with one exception: the
session's time zone is UTC, because change records carry UTC timestamps.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.lake.iceberg import IcebergLake

ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""The jar that Iceberg on Spark 4.1 needs, as Maven names it."""

_EXTENSIONS = "spark.sql.extensions"
_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


def build_session(
    connector: Connector, app_name: str, *, extra_conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session for a connector, or join the one that runs.

    Args:
        connector: The declaration; its ``lake.catalog_options`` declare the catalog unless Spark's own
            configuration does.
        app_name: Name of the application, unless ``spark-submit`` gave one.
        extra_conf: Further Spark settings; they win over this package's but not over what Spark has already.

    Returns:
        The session.

    Raises:
        ConfigurationError: There is no Java, Iceberg's jar is missing, or nothing declares the catalog.
    """
    _require_java()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", _python(extra_conf))
    running = SparkContext._active_spark_context is not None
    launch = SparkConf(loadDefaults=False)
    for name, value in (extra_conf or {}).items():
        launch.set(name, value)
    SparkContext._ensure_initialized(conf=launch)
    present = SparkContext.getOrCreate().getConf() if running else SparkConf()
    wanted = _settings(connector, {**_all(present), **dict(extra_conf or {})})
    builder = SparkSession.builder
    for name, value in {**wanted, **dict(extra_conf or {})}.items():
        if name == _EXTENSIONS or not present.contains(name):
            builder = builder.config(name, value)
    if not present.contains("spark.app.name"):
        builder = builder.appName(app_name)
    if not present.contains("spark.master") and "spark.master" not in (extra_conf or {}):
        builder = builder.master("local[*]")
    _require_iceberg(SparkContext._jvm)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if session.conf.get("spark.sql.shuffle.partitions", "200") == "200":
        session.conf.set(
            "spark.sql.shuffle.partitions", str(max(2, 2 * session.sparkContext.defaultParallelism))
        )
    return session


def build_lake(spark: SparkSession, connector: Connector) -> IcebergLake:
    """Return the lake in which a connector's tables live.

    Args:
        spark: A session from :func:`build_session`.
        connector: The declaration.

    Raises:
        ConfigurationError: The session's catalog caches tables, so that readers would miss commits.
    """
    from airflow_cdc_provider.lake.iceberg import IcebergLake

    catalog = connector.lake.catalog
    option = f"spark.sql.catalog.{catalog}.cache-enabled"
    if spark.conf.get(option, "true") != "false":
        raise ConfigurationError(
            f"catalog {catalog} caches tables, so that one job would miss another's commits",
            expected=f"{option}=false",
            found=repr(spark.conf.get(option, None)),
            remedy=f"pass --conf {option}=false, or let build_session() make the session",
        )
    return IcebergLake(spark, catalog, format_version=connector.lake.format_version)


def _settings(connector: Connector, present: Mapping[str, str]) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{connector.lake.catalog}"
    options = connector.lake.catalog_options
    if catalog not in present and not options:
        raise ConfigurationError(
            f"nothing declares the catalog {connector.lake.catalog}",
            expected=f"option lake.catalog_options, or {catalog} in Spark's configuration",
            remedy="for a first try: lake: {catalog_options: {type: hadoop, warehouse: 'file:///tmp/lake'}}",
        )
    extensions = [e for e in present.get(_EXTENSIONS, "").split(",") if e]
    if _ICEBERG_EXTENSIONS not in extensions:
        extensions.append(_ICEBERG_EXTENSIONS)
    return {
        _EXTENSIONS: ",".join(extensions),
        catalog: _ICEBERG_CATALOG,
        f"{catalog}.cache-enabled": "false",
        **{f"{catalog}.{name}": value for name, value in options.items()},
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.pyspark.python": os.environ["PYSPARK_PYTHON"],
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }


def _all(conf: Any) -> dict[str, str]:
    return dict(conf.getAll())


def _python(extra_conf: Mapping[str, str] | None) -> str:
    return (extra_conf or {}).get("spark.pyspark.python", sys.executable)


def _require_java() -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started us: its JVM runs already
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(
            "Spark needs Java and there is none",
            expected="JAVA_HOME or java on the PATH, version 17 or 21",
            found=f"JAVA_HOME={home!r}" if home else "neither",
            remedy="install a JRE, for example: apt-get install openjdk-17-jre-headless",
        )


def _require_iceberg(jvm: Any) -> None:
    from py4j.protocol import Py4JJavaError

    try:
        jvm.java.lang.Class.forName(
            _ICEBERG_CATALOG, False, jvm.java.lang.Thread.currentThread().getContextClassLoader()
        )
    except Py4JJavaError as error:
        raise ConfigurationError(
            "Iceberg is not on Spark's class path",
            expected=f"class {_ICEBERG_CATALOG}",
            remedy=f"pass --packages {ICEBERG_JAR}, or --jars with that file",
        ) from error
