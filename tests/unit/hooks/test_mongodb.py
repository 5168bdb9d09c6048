"""What Airflow and this provider show of a MongoDB connection."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json

import pytest
from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse
from airflow.models import Connection
from airflow.sdk._shared.secrets_masker import redact as masked_in_logs

from airflow_cdc_provider.get_provider_info import get_provider_info
from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook
from airflow_cdc_provider.masking import masked

SECRET = "s3cr3t%2Fword"
URI = f"mongodb://me:{SECRET}@127.0.0.1:1/?serverSelectionTimeoutMS=20"


@pytest.mark.covers("MDB-CONN-01")
def test_a_connection_string_with_a_password_is_masked_in_the_ui_and_in_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"conn_type": "cdc_mongodb", "extra": {"secret_uri": URI, "replicaSet": "rs0"}}
    monkeypatch.setenv("AIRFLOW_CONN_MONGO_SHOP", json.dumps(values))
    stored = Connection(conn_id="mongo_shop", conn_type="cdc_mongodb", extra=json.dumps(values["extra"]))
    (kind,) = [k for k in get_provider_info()["connection-types"] if k["connection-type"] == "cdc_mongodb"]
    hook = MongodbCdcHook("mongo_shop")

    shown = ConnectionResponse.model_validate(stored, from_attributes=True)
    works, answer = hook.test_connection()

    assert kind["conn-fields"]["secret_uri"]["schema"]["format"] == "password"
    assert json.loads(shown.extra or "") == {"secret_uri": "***", "replicaSet": "rs0"}
    assert not works
    assert "127.0.0.1:1" in answer
    assert "s3cr3t" not in answer
    assert "s3cr3t" not in str(masked_in_logs(f"connecting to {URI}"))
    for text in (URI, f"password {SECRET} is wrong", "password s3cr3t/word is wrong"):
        assert "s3cr3t" not in masked(text)
