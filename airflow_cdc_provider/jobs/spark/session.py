"""The Spark session of a job, and the lake inside it.

:func:`build_session` starts or joins a session and adds the settings of this package. Settings of
``spark-submit``, the cluster's ``spark-defaults.conf`` or a running session take precedence, with these
exceptions: the session's time zone is UTC, because change records have UTC timestamps; names of columns are
not searched for variables (``${env:NAME}``). What Spark redacts is extended.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spark.redaction import REDACTION, with_redaction
from airflow_cdc_provider.lake.warehouse import require_atomic_commits
from airflow_cdc_provider.secrets import resolve_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.lake.iceberg import IcebergLake

ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Maven coordinates of the Iceberg jar for Spark 4.1."""

_EXTENSIONS = "spark.sql.extensions"
_ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_TIME_ZONE = "spark.sql.session.timeZone"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SUBSTITUTION = "spark.sql.variable.substitute"


def build_session(
    connector: Connector, app_name: str, *, extra_conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session for a connector, or join the running one.

    Args:
        connector: The declaration; its ``lake.catalog_options`` declare the catalog unless Spark's own
            configuration does.
        app_name: Name of the application, unless ``spark-submit`` sets one.
        extra_conf: Further Spark settings. They override this package's, not existing ones of Spark.

    Returns:
        The session.

    Raises:
        ConfigurationError: There is no Java, Iceberg's jar is missing, or nothing declares the catalog.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    extra = dict(extra_conf or {})
    running = SparkSession.getActiveSession()
    if running is not None:
        present = dict(running.conf.getAll)
    else:
        _require_java()
        os.environ.setdefault("PYSPARK_PYTHON", extra.get("spark.pyspark.python", sys.executable))
        launch = SparkConf(loadDefaults=False)  # class path and memory are fixed when the JVM starts
        launch.setAll([(name, value) for name, value in extra.items() if not name.startswith("spark.sql.")])
        SparkContext._ensure_initialized(conf=launch)
        present = dict(SparkConf(_jvm=SparkContext._jvm).getAll())
    configured = {
        "spark.app.name": app_name,
        "spark.master": "local[*]",
        **settings(connector, present, extra),
    }
    _require_iceberg(SparkContext._jvm)
    builder = SparkSession.builder
    for name, value in configured.items():
        if name not in present or name in {_EXTENSIONS, _TIME_ZONE, _SUBSTITUTION, REDACTION}:
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    if _SHUFFLE_PARTITIONS not in present.keys() | extra.keys():  # 200 by default: for big data
        session.conf.set(_SHUFFLE_PARTITIONS, str(max(2, 2 * session.sparkContext.defaultParallelism)))
    return session


def build_lake(spark: SparkSession, connector: Connector) -> IcebergLake:
    """Return the lake of a connector's tables.

    Args:
        spark: A session from :func:`build_session`.
        connector: The declaration.

    Raises:
        ConfigurationError: The session's catalog caches tables, so that readers would miss commits; or it
            can't detect concurrent commits.
    """
    from airflow_cdc_provider.lake.iceberg import IcebergLake

    catalog = connector.lake.catalog
    names = ("type", "catalog-impl", "warehouse")
    require_atomic_commits(
        connector, {name: spark.conf.get(f"spark.sql.catalog.{catalog}.{name}", "") for name in names}
    )
    option = f"spark.sql.catalog.{catalog}.cache-enabled"
    if spark.conf.get(option, "true") != "false":
        raise ConfigurationError(
            f"catalog {catalog} caches tables, so that one job would miss another's commits",
            expected=f"{option}=false",
            found=repr(spark.conf.get(option, None)),
            remedy=f"pass --conf {option}=false to spark-submit",
        )
    return IcebergLake(spark, catalog, format_version=connector.lake.format_version)


def settings(
    connector: Connector, present: Mapping[str, str], extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the Spark settings of a connector's jobs.

    Args:
        connector: The declaration.
        present: Existing settings of Spark; they determine whether the catalog is declared.
        extra: Further settings, which override this package's.

    Raises:
        ConfigurationError: Nothing declares the catalog.
    """
    extra = extra or {}
    catalog = f"spark.sql.catalog.{connector.lake.catalog}"
    options = resolve_secrets(connector.lake.catalog_options, "lake.catalog_options")
    if not options and catalog not in present and catalog not in extra:
        raise ConfigurationError(
            f"nothing declares the catalog {connector.lake.catalog}",
            expected=f"option lake.catalog_options, or {catalog} in Spark's configuration",
            remedy="for a first try: lake: {catalog_options: {type: hadoop, warehouse: 'file:///tmp/lake'}}",
        )
    extensions = [name for name in {**extra, **present}.get(_EXTENSIONS, "").split(",") if name]
    if _ICEBERG_EXTENSIONS not in extensions:
        extensions.append(_ICEBERG_EXTENSIONS)
    return {
        catalog: _ICEBERG_CATALOG,
        f"{catalog}.cache-enabled": "false",
        **{f"{catalog}.{name}": value for name, value in options.items()},
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A merge defines its joins and shuffles. Adaptive execution would run each stage as a job, plan it
        # again, and compute the broadcast keys twice.
        "spark.sql.adaptive.enabled": "false",
        # PySpark would look for the caller's line, and send it to the JVM, in each call of a column's method.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        **extra,
        _EXTENSIONS: ",".join(extensions),
        _TIME_ZONE: "UTC",
        _SUBSTITUTION: "false",  # else ${env:NAME} in a column's name is a variable of the driver
        REDACTION: with_redaction({**extra, **present}.get(REDACTION, "")),
    }


def _require_java() -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started this process: its JVM runs
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(
            "Spark needs Java, which is not installed",
            expected="JAVA_HOME, or java on the PATH; version 17 or 21",
            found=f"JAVA_HOME={home!r}" if home else "neither",
            remedy="install a JRE, for example: apt-get install openjdk-17-jre-headless",
        )


def _require_iceberg(jvm: Any) -> None:
    from py4j.protocol import Py4JJavaError

    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_ICEBERG_CATALOG, False, loader)
    except Py4JJavaError as error:
        raise ConfigurationError(
            "Iceberg is not on Spark's class path",
            expected=f"class {_ICEBERG_CATALOG}",
            remedy=f"pass the jar of {ICEBERG_JAR} to spark-submit with --jars",
        ) from error
