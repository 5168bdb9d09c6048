"""Encrypted commit logs on Spark: the driver alone knows the keystore and its password."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from tests.integration.jobs.conftest import RunStage
from tests.unit.sources.cassandra.recordings import recording

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.mark.covers("CAS-C50-08")
def test_executors_read_encrypted_segments_with_the_drivers_key(
    spark: SparkSession, run_stage: RunStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = recording("v7-encrypted")
    keystore = shutil.copy(full.folder / "keystore.jceks", tmp_path)
    name = f"e{uuid.uuid4().hex[:8]}"
    source: dict[str, Any] = {
        "type": "cassandra",
        "cdc_raw": str(full.unpack(tmp_path / "cdc_raw")),
        "schema_file": str(full.folder / "schema.cql"),
        "encryption": {"keystore": keystore, "keystore_password": "${env:CDC_TEST_KEYSTORE_WORD}"},
    }
    declaration = {
        "name": name,
        "source": source,
        "tables": [r"shop_a\.wide.*", r"shop_a\.big"],
        "lake": {"catalog": "lake", "namespace": name},
    }

    with pytest.raises(ConfigurationError, match="environment variable CDC_TEST_KEYSTORE_WORD"):
        run_stage("capture", declaration, {})
    # The workers were forked before: they don't get the variable.
    monkeypatch.setenv("CDC_TEST_KEYSTORE_WORD", "cassandra")
    result = run_stage("capture", declaration, {})

    selected = [u for u in full.updates() if u["table"].startswith("wide") or u["table"] == "big"]
    kinds = spark.table(f"lake.{name}.{name}_changes").where("kind = 'change'").groupBy("source_table")
    assert sum(row["count"] for row in kinds.count().collect()) == len(selected) > 50
    assert result.ok
