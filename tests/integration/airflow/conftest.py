"""The shop of jobs' tests, as Airflow's tasks see it."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
from pathlib import Path

import pytest

from tests.integration.jobs.conftest import keyspace, run_stage, shop
from tests.integration.jobs.shop import Shop

__all__ = ["airflow_shop", "keyspace", "run_stage", "shop"]


@pytest.fixture
def airflow_shop(shop: Shop, warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The shop, declared with its catalog and a connection of Airflow; jobs work in ``tmp_path/work``."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_cassandra", **shop.connection}))
    monkeypatch.setenv("AIRFLOW__CDC__WORK_FOLDER", str(tmp_path / "work"))
    shop.declare(source={"conn_id": "shop"})
    shop.declare_catalog()
    return shop
