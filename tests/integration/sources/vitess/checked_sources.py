"""Sources of a real Vitess that are checked, and what the check finds."""

from __future__ import annotations

from typing import Any

from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer


def source(server: VitessServer, keyspace: str = "shop", tables: str = ".*", **options: Any) -> VitessSource:
    return VitessSource(VitessOptions(keyspace=keyspace, **options), server.connection, Selection((tables,)))


def findings(found: list[Finding], *levels: str) -> dict[str, str]:
    return {
        f.subject: f"{f.message}. {f.remedy}" for f in found if f.level in (levels or ("warning", "error"))
    }
