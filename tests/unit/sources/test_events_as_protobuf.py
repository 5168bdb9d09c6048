"""Events of each source as Protobuf: Google's library reads what the JSON of the same events shows."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.unit.events.protobuf_messages import message_class
from tests.unit.sources.cassandra.events.cassandra_recordings import printed
from tests.unit.sources.mongodb.events.published_events import UPDATE, change, published
from tests.unit.sources.scylla.events.logged_changes import DELETE, INSERT, logged, made
from tests.unit.sources.scylla.events.logged_changes import UPDATE as SCYLLA_UPDATE
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES, declared
from tests.unit.sources.vitess.events.vitess_recordings import records as recorded

_DAY_0 = datetime.date(1970, 1, 1)
_LOGICAL: dict[str, Callable[[Any], Any]] = {
    "google.type.Date": lambda m: (datetime.date(m.year, m.month, m.day) - _DAY_0).days,
    "google.type.TimeOfDay": lambda m: (
        ((m.hours * 60 + m.minutes) * 60 + m.seconds) * 1000 + m.nanos // 1_000_000
    ),
    "google.protobuf.Timestamp": lambda m: m.seconds * 1000 + m.nanos // 1_000_000,
    "confluent.type.Decimal": lambda m: base64.b64encode(m.value).decode(),
}
AS_PROTOBUF: dict[str, Any] = {"key": "protobuf", "value": "protobuf", "schemas": True}


def read(event: dict[str, Any], side: str) -> Any:
    """Decode the key or value of a printed event by its schema."""
    text = event[f"{side}_schema"]
    package = re.search(r"^package (.+);$", text, re.MULTILINE)
    name = re.search(r"^message (\w+) ", text, re.MULTILINE)
    assert package
    assert name
    return message_class(text, f"{package[1]}.{name[1]}").FromString(base64.b64decode(event[side]))


def require_same(message: Any, published: Any, where: str = "") -> None:
    """Fail unless a message holds what JSON shows, null for null."""
    for name, value in published.items():
        here, field = f"{where}.{name}", message.DESCRIPTOR.fields_by_name[name]
        found = getattr(message, name)
        if field.is_repeated:
            require_same_list(list(found), value, here)
        elif value is None:
            assert not message.HasField(name), here
        elif isinstance(value, dict):
            assert message.HasField(name), here
            require_same(found, value, here)
        else:
            assert same_value(plain(found), plain(value)), here


def require_same_list(found: list[Any], published: Any, where: str) -> None:
    if isinstance(published, dict):
        published = [{"key": key, "value": value} for key, value in published.items()]
    elif published and isinstance(published[0], list):
        published = [{"key": key, "value": value} for key, value in published]
    assert len(found) == len(published or []), where
    for one, value in zip(found, published or [], strict=True):
        if isinstance(value, dict):
            require_same(one, value, where)
        else:
            assert same_value(plain(one), plain(value)), where


def same_value(found: Any, published: Any) -> bool:
    """Compare values; JSON shows the shortest text of a 32-bit number, which Python reads as another one."""
    if isinstance(found, float) and isinstance(published, float):
        return math.isclose(found, published, rel_tol=1e-7)
    return bool(found == published)


def plain(value: Any) -> Any:
    """Return what JSON shows: bytes in base64, numbers that JSON has not by name, Connect's own types."""
    if isinstance(value, Message):
        return _LOGICAL[value.DESCRIPTOR.full_name](value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def require_same_events(encoded: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    assert len(encoded) == len(events)
    for written, event in zip(encoded, events, strict=True):
        assert written["topic"] == event["topic"]
        for side in ("key", "value"):
            if event[side] is None:
                assert written[side] is None
            else:
                require_same(read(written, side), json.loads(event[side]))


def test_events_of_cassandra() -> None:
    require_same_events(printed(**AS_PROTOBUF), printed())


def test_events_of_mongodb(tmp_path: Path) -> None:
    stream = [change(), change(**UPDATE), change(operationType="delete", fullDocument=...)]
    require_same_events(published(tmp_path, stream, AS_PROTOBUF), published(tmp_path, stream, {}))


@pytest.mark.parametrize("name", ["default", "tx", "strconnect"])
def test_events_of_vitess(name: str) -> None:
    """Also dates, times and decimals that Connect has types of its own for."""
    stream = FIXTURES / "vstream" / f"{name}.vstream"
    plain_names = {"schemas": False, "schema_names": "avro", "field_names": "avro"}
    events = [recorded(declared(name, **choices), stream) for choices in (AS_PROTOBUF, {**plain_names})]
    require_same_events(*events)


def test_events_of_scylladb() -> None:
    changes = logged(INSERT, SCYLLA_UPDATE, DELETE)
    encoded = made(changes, key="protobuf", value="protobuf", schemas=True)
    for event in encoded:
        for side in ("key", "value"):
            event[side] = event[side] and base64.b64encode(event[side]).decode()
            event[f"{side}_schema"] = json.loads(event[f"{side}_schema"])
    require_same_events(encoded, made(changes))
