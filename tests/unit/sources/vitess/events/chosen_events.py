"""Events of Vitess by the options of a connector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from tests.unit.sources.vitess.events.vitess_recordings import records
from tests.unit.vitess_stream import NOT_NULL, PRIMARY, Stream, column

ID = column("id", "INT64", "bigint", PRIMARY | NOT_NULL)
NAME = column("name", "VARCHAR", "varchar(20)", charset=255)


def events_of(
    stream: Stream, tmp_path: Path, skipped: SkippedRecords | None = None, **publish: Any
) -> list[dict[str, Any]]:
    """Print the events of a built stream, keys, values and headers parsed."""
    connector = Connector.from_dict(
        {
            "name": "cdc",
            "source": {"type": "vitess", "keyspace": stream.keyspace},
            "publish": {"headers": False, **publish},
        }
    )
    found = records(connector, stream.write(tmp_path / "made.vstream"), skipped)
    return [
        {
            **record,
            **{side: record[side] and json.loads(record[side]) for side in ("key", "value")},
            "headers": {name: json.loads(text) for name, text in record["headers"]},
        }
        for record in found
    ]
