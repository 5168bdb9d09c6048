"""Spark sessions for tests of the lake: one per process, with a Hadoop and a JDBC (SQLite) catalog."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spark.session import ICEBERG_JAR, build_session
from server_kit.jars import require_recorded
from tests.conftest import JAVA_OPTIONS, QUICK_PLANS

SQLITE_JAR = "org.xerial:sqlite-jdbc:3.50.3.0"
CATALOGS = ("hadoop", "jdbc")


def jar(coordinates: str) -> Path | None:
    """Find a jar in the local Maven repository, or fetch it by Maven; None without either."""
    group, artifact, version = coordinates.split(":")
    repository = Path.home() / ".m2" / "repository"
    path = repository.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")
    if not path.exists() and shutil.which("mvn"):
        get = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get"
        subprocess.run(
            ["mvn", "-B", "-q", get, f"-Dartifact={coordinates}", "-Dtransitive=false"],
            check=False,
            capture_output=True,
        )
    if not path.exists():
        return None
    require_recorded(path)
    return path


def jars() -> list[str]:
    """Paths of the jars that the tests need; empty where they can't be had."""
    found = [jar(ICEBERG_JAR), jar(SQLITE_JAR)]
    return [str(path) for path in found if path is not None] if all(found) else []


def connector(catalog: str = "hadoop", *, namespace: str = "", name: str = "shop") -> Connector:
    """A declaration whose catalog the session declares."""
    return Connector.from_dict(
        {
            "name": name,
            "source": {"type": "mongodb", "conn_id": "unused"},
            "lake": {"catalog": catalog, "namespace": namespace},
        }
    )


def catalog_options(folder: Path, kind: str, name: str) -> dict[str, str]:
    """Spark settings of a catalog, its tables under a folder."""
    warehouse = folder / name
    warehouse.mkdir(parents=True, exist_ok=True)
    options = {"type": kind, "warehouse": warehouse.as_uri(), "cache-enabled": "false"}
    if kind == "jdbc":
        options["uri"] = f"jdbc:sqlite:{folder}/{name}.db?busy_timeout=30000"
        options["jdbc.schema-version"] = "V1"
    catalog = f"spark.sql.catalog.{name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{catalog}.{option}": value for option, value in options.items()},
    }


def spark_session(folder: Path) -> Any:
    """Start the process's session over the tables of a folder."""
    session = build_session(
        connector(),
        "lake tests",
        extra_conf={
            "spark.master": "local[2]",
            **QUICK_PLANS,
            "spark.ui.showConsoleProgress": "false",
            "spark.jars": ",".join(jars()),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": os.fspath(folder),
            **{key: value for name in CATALOGS for key, value in catalog_options(folder, name, name).items()},
        },
    )
    session.sparkContext.setLogLevel("OFF")
    return session
