"""What Debezium's connectors sent of real databases, as ``tools/record_debezium.py`` recorded it."""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from airflow_cdc_provider.kafka.registry import RegisteredSchema
from tests.conftest import ROOT

FIXTURES: Final = ROOT / "tests" / "fixtures" / "debezium"
AVRO: Final = "avro"

Pairs = list[tuple[bytes | None, bytes | None]]


@dataclass(frozen=True)
class Recording:
    """One database's.

    Args:
        records: Key and value of each record, by configuration and table.
        plain: The same without schemas.
        tables: Per table the database's types of its columns, and its rows, values as text.
        schemas: Those that a registry had, by id.
    """

    records: Mapping[str, Mapping[str, Pairs]]
    plain: Mapping[str, Mapping[str, Pairs]]
    tables: Mapping[str, Any]
    schemas: Mapping[int, RegisteredSchema]

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        """Answer as the registry did."""
        return self.schemas.get(schema_id)


@cache
def recording(database: str) -> Recording:
    """Return what was recorded of a database."""
    texts: list[str] = []
    registered = {}
    framed: dict[str, dict[str, Pairs]] = defaultdict(lambda: defaultdict(list))
    plain: dict[str, dict[str, Pairs]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(FIXTURES / database / "records.jsonl.gz", "rt") as lines:
        for line in lines:
            one = json.loads(line)
            if "schema" in one:
                texts.append(one["schema"])
            elif "avro" in one:
                registered[one["id"]] = RegisteredSchema("AVRO", one["avro"], ())
            else:
                table = one["topic"].removeprefix("server.shop.")
                sides = (one["key"], one["value"])
                if one["run"] == AVRO:
                    framed[AVRO][table].append(_pair([side and base64.b64decode(side) for side in sides]))
                    continue
                payloads = [side and side[1].encode() for side in sides]
                whole = [
                    side and f'{{"schema":{texts[side[0]]},"payload":{side[1]}}}'.encode() for side in sides
                ]
                framed[one["run"]][table].append(_pair(whole))
                plain[one["run"]][table].append(
                    _pair([None if side == b"null" else side for side in payloads])
                )
    with gzip.open(FIXTURES / database / "rows.json.gz", "rt") as file:
        tables = json.load(file)
    for table in tables.values():
        kinds = table["columns"]
        table["columns"] = {
            name: "MySQL's json" if (database, kind) == ("mysql", "json") else kind
            for name, kind in kinds.items()
        }
    return Recording(framed, plain, tables, registered)


def _pair(sides: Sequence[bytes | None]) -> tuple[bytes | None, bytes | None]:
    key, value = sides
    return key, value
