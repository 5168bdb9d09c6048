"""Avro out of topics, with schemas in a registry: any schema, and any messages of it.

The first byte of an input chooses a part, the second the options:

=========== ==========================================================================
`text`      the text of a schema with its length before it, then messages
`built`     choices: a schema of any shape (recursive, nested, huge), then messages
=========== ==========================================================================
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import fastavro
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.sources.debezium.avro_json import avro_to_json
from airflow_cdc_provider.sources.debezium.avro_program import compile_avro
from airflow_cdc_provider.sources.debezium.converters import WRONG_SCHEMAS, TextConverter
from tests.unit.sources.debezium.avro_messages import FIELDS
from tests.unit.sources.debezium.debezium_messages import framed as with_fields
from tests.unit.sources.debezium.registry_writers import Registered, as_avro, head
from tools.fuzz.choices import Choices, chunk
from tools.fuzz.targets.topics import framed, is_json, take

_PRIMITIVES: Final = ("boolean", "int", "long", "float", "double", "bytes", "string", "null", "n.R0", "R1")
_LOGICAL: Final = (
    *("decimal", "date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "uuid"),
    *("timestamp-nanos", "local-timestamp-micros", "duration", 7),
)
_SIZES: Final = (0, 1, 3, 16, 1 << 20, 1 << 31, 1 << 62, 1 << 70, -1, "3", None, 2.5)
_CONNECT: Final = ("", "org.apache.kafka.connect.data.Decimal", "io.debezium.time.ZonedTimestamp", "n.X")
_MOST: Final = 1 << 63


def run(data: bytes) -> None:
    """Read messages with a schema; compare with fastavro what it can read.

    Raises:
        AssertionError: A promise is broken, or any other error.
    """
    if len(data) < 2:
        return
    choices = Choices(data[2:])
    if data[0] % 2:
        row = _schema(choices, 4, [0])
        text = json.dumps(row if data[1] & 2 else _envelope(row))
    else:
        text = choices.chunk().decode(errors="replace")
    raws = choices.some(4, choices.chunk)
    _compare(text, raws)
    registry = Registered()
    number = registry.add("AVRO", text)
    pairs = [(b"key", head(number) + raw) for raw in raws]
    take(pairs, TextConverter(), framed(registry, "avro"), unwrapped=bool(data[1] & 2))


def _compare(text: str, raws: list[bytes]) -> None:
    """What is read is JSON, and fastavro reads it to the same end."""
    try:
        program, _ = compile_avro(text)
        parsed = fastavro.parse_schema(json.loads(text))
    except WRONG_SCHEMAS:
        return
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType):
        return
    found, broken = avro_to_json(program, *binary_buffer(pa.array(raws, pa.binary())))
    found.validate(full=True)
    assert found.nbytes <= 1000 * sum(map(len, raws)) + 50 * len(text) * len(raws) + (1 << 16)
    for raw, one, fault in zip(raws, found.to_pylist(), broken.tolist(), strict=True):
        if not fault:
            assert one is not None
            assert is_json(one.decode(errors="replace").encode()), (
                one
            )  # texts that aren't UTF-8 are refused later
            _read(parsed, raw)


def _read(parsed: Any, raw: bytes) -> None:
    stream = io.BytesIO(raw)
    try:
        fastavro.schemaless_reader(stream, parsed)
    except (OverflowError, UnicodeDecodeError, ValueError, ArithmeticError):
        return  # dates that Python doesn't have, and text that isn't UTF-8
    assert stream.tell() == len(raw), "fastavro reads less"


def _envelope(row: Any) -> dict[str, Any]:
    sides = [{"name": side, "type": ["null", one]} for side, one in (("before", "string"), ("after", row))]
    return {"type": "record", "name": "s.Envelope", "fields": [*sides, {"name": "op", "type": "string"}]}


def _schema(choices: Choices, depth: int, records: list[int]) -> Any:
    kind = choices.byte() % (14 if depth else 6)
    if kind < 4:
        return choices.one_of(_PRIMITIVES)
    if kind < 6:
        return {"type": choices.one_of(_PRIMITIVES[:7]), **_attributes(choices)}
    if kind == 6:
        return {"type": "array", "items": _schema(choices, depth - 1, records), **_attributes(choices)}
    if kind == 7:
        return {"type": "map", "values": _schema(choices, depth - 1, records)}
    if kind == 8:
        return ["null", _schema(choices, depth - 1, records)]
    if kind == 9:
        return choices.some(4, lambda: _schema(choices, depth - 1, records))
    name = f"R{records[0]}"
    records[0] += 1
    if kind == 10:
        return {"type": "fixed", "name": name, "size": choices.one_of(_SIZES), **_attributes(choices)}
    if kind == 11:
        symbols = choices.one_of((["A", "B"], ["A"], [], ["A", "A"], [choices.text()]))
        return {"type": "enum", "name": name, "symbols": symbols}
    names = ("id", "a", "A", "b", "key", "value", "_rest", choices.text())
    fields = choices.some(
        5, lambda: {"name": choices.one_of(names), "type": _schema(choices, depth - 1, records)}
    )
    return {"type": "record", "name": choices.one_of((name, f"n.{name}", "R0")), "fields": fields}


def _attributes(choices: Choices) -> dict[str, Any]:
    kind = choices.byte() % 4
    if kind == 0:
        return {}
    if kind == 1:
        sizes = (2, 0, -3, 40, _MOST, "x")
        return {
            "logicalType": choices.one_of(_LOGICAL),
            "scale": choices.one_of(sizes),
            "precision": choices.one_of(sizes),
        }
    if kind == 2:
        parameters = {"scale": choices.one_of(("2", "-1", "x", "9" * 20))}
        return {"connect.name": choices.one_of(_CONNECT), "connect.parameters": parameters}
    return {"connect.type": choices.one_of(("int8", "int16", "x", 5)), "connect.version": choices.byte()}


def seeds() -> Iterator[bytes]:
    """Yield an envelope with a row, hostile schemas, and random choices."""
    registry = Registered()
    value = {"before": None, "after": {"id": 1, "name": "x"}, "op": "c"}
    content = with_fields(value, FIELDS)
    op = {"type": "string", "optional": False, "field": "op"}
    content["schema"]["fields"] = [*content["schema"]["fields"], op]
    message = as_avro(json.dumps(content).encode(), registry)
    assert message is not None
    text = registry.schemas[0].text.encode()
    yield b"\0\0" + chunk(text) + b"\1" + chunk(message[5:])
    recursive = {"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}
    for schema in (
        recursive,
        {"type": "array", "items": "null"},
        {"type": "fixed", "name": "f", "size": 1 << 40},
    ):
        yield b"\0\2" + chunk(json.dumps(schema).encode()) + b"\1" + chunk(b"\xfe\xff\xff\xff\x0f\x00")
    rng = random.Random(1)
    for number in range(200):
        yield bytes([1, number]) + rng.randbytes(rng.randrange(20, 300))
