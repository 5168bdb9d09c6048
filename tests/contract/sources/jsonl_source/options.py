"""Options of source ``jsonl``. Imports little: DAG files read it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_cdc_provider.options import option
from airflow_cdc_provider.sources.plugin import SourceOptions


@dataclass(frozen=True)
class JsonLinesOptions(SourceOptions):
    """Options of a folder of JSON lines files."""

    folder: str = option("Folder with a file DATABASE.TABLE.jsonl per table")
    conn_id: str = option("Not used: files need no connection", "")
