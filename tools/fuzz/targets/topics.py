"""What the targets of Debezium's topics share: messages are read, merged and projected as jobs do it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.sources.debezium.converters import Converter, FramedConverter
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import read_messages
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas, Written
from airflow_cdc_provider.sources.debezium.states import spellings
from tests.unit.sources.debezium.debezium_messages import FEED, PLACEHOLDER, Table, messages
from tests.unit.sources.debezium.registry_writers import Registered

Pairs = Sequence[tuple[bytes | None, bytes | None]]


def framed(registry: Registered, written: Written) -> FramedConverter:
    """Return the converter of messages with schemas in a registry."""
    return FramedConverter(RegisteredSchemas(registry, written))


def take(pairs: Pairs, keys: Converter, values: Converter, *, unwrapped: bool) -> list[dict[str, object]]:
    """Read messages: each becomes a record or is counted; merge them twice, and show the mirror.

    Returns:
        The rows of the mirror.
    """
    feed = replace(FEED, key_converter=keys, value_converter=values, unwrapped=unwrapped)
    table = Table(feed=feed, form=Form(unwrapped, spellings(PLACEHOLDER)))
    records = read_messages(messages(pairs), feed, RecordedSchemas(), table.skipped)
    records.validate(full=True)
    kinds = Counter(records.column("kind").to_pylist())
    assert sum(table.skipped.values()) + sum(kinds.values()) - kinds["schema"] == len(pairs), "one is lost"
    size = sum(len(part or b"") for pair in pairs for part in pair)
    assert records.nbytes <= 1000 * size + (1 << 20), "much comes out of little"
    rows: list[dict[str, object]] = []
    with suppress(CdcError):
        for _ in range(2 if kinds["schema"] else 0):
            shown = table.merge(records)
            shown.validate(full=True)
            assert len({name.lower() for name in shown.schema.names}) == shown.num_columns
            rows = shown.to_pylist()
    return rows


def is_json(text: bytes) -> bool:
    """Return whether Python reads a text as JSON, without its own additions."""

    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(text.decode(), parse_constant=refuse, parse_int=len)
    except (ValueError, RecursionError):
        return False
    return True
