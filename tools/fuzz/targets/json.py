"""JSON out of topics: with schemas embedded, without, or with a JSON Schema in a registry.

An input is the number of a part, options, then:

=========== ========================================================================
`texts`     keys and values, alternately, each with its length before it
`text`      one text, which is also given to Python's reader
`schema`    choices: a Connect schema of any shape, and a row
`registry`  the text of a JSON Schema with its length before it, then values
=========== ========================================================================
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.sources.debezium.converters import JsonConverter, TextConverter
from airflow_cdc_provider.sources.debezium.json_members import members_of, read_values
from tests.unit.sources.debezium.debezium_messages import PLACEHOLDER
from tests.unit.sources.debezium.registry_writers import Registered, head
from tools.fuzz.choices import Choices, chunk
from tools.fuzz.targets.topics import Pairs, framed, is_json, take

_KINDS: Final = (
    *("int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes"),
    *("struct", "array", "map", "what"),
)
_LOGICAL: Final = (
    *("", "io.debezium.time.Date", "io.debezium.time.MicroTimestamp", "io.debezium.time.NanoTimestamp"),
    *("io.debezium.time.ZonedTimestamp", "io.debezium.time.ZonedTime", "io.debezium.time.Timestamp"),
    *("io.debezium.time.MicroTime", "io.debezium.time.Year", "io.debezium.time.MicroDuration"),
    *("org.apache.kafka.connect.data.Decimal", "org.apache.kafka.connect.data.Date"),
    *("io.debezium.data.VariableScaleDecimal", "io.debezium.data.Json", "io.debezium.data.Bits"),
    *("io.debezium.data.geometry.Point", "io.debezium.data.Uuid", "io.debezium.data.Enum"),
)
_PLAIN: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**63,
        -(2**63) - 1,
        10**400,
        "",
        "a",
        PLACEHOLDER,
        "AQ==",
        "=",
        "\ud800",
    ),
    *("2024-01-02T03:04:05.123456789Z", "12:34:56+02:00", 1e308, 253402300800000, [], {}, "NaN", "\0"),
)
_NAMES: Final = ("id", "a", "A", "_rest", "__op", "__deleted", "x y", "é", "", "scale", "value")
_TEXTS: Final = (
    b'{"before":null,"after":{"id":1,"a":"x"},"op":"c","source":{"ts_ms":1}}',
    b'{"id":1}',
    b'{"op":"d","before":{"id":1}}',
    b'{"op":"t"}',
    b'[1,2.5e3,-0,"\\u00e9\\ud83d\\ude00",true,null,{"a":{}}]',
    b'{"schema":{"type":"struct","fields":[{"type":"int64","field":"id"}]},"payload":{"id":1}}',
)
_SCHEMAS: Final = (
    b'{"type":"object","properties":{"op":{"type":"string"},"after":{"oneOf":[{"type":"null"},{"type":"object",'
    b'"properties":{"id":{"type":"integer","connect.type":"int64"},"m":{"type":"object"}}}]}}}',
    b'{"$ref":"#/d/r","d":{"r":{"type":"object","properties":{"self":{"$ref":"#/d/r"}}}}}',
)


def run(data: bytes) -> None:
    """Give an input to its part.

    Raises:
        AssertionError: A promise is broken, or any other error.
    """
    if len(data) > 1:
        PARTS[data[0] % len(PARTS)](Choices(data[2:]), data[1])


def texts(choices: Choices, options: int) -> None:
    """Read keys and values."""
    pairs: list[tuple[bytes | None, bytes | None]] = []
    while choices.left and len(pairs) < 6:
        key, value = choices.chunk(), choices.chunk()
        pairs.append((key, value if options & 8 or value else None))
    _take(pairs, options)


def _take(pairs: Pairs, options: int) -> None:
    keys = TextConverter() if options & 1 else JsonConverter()
    take(pairs, keys, JsonConverter(), unwrapped=bool(options & 2))


def text(choices: Choices, options: int) -> None:
    """Read a text: it is JSON for Python, too."""
    raw = choices.rest()
    found, values = read_values(pa.array([raw], pa.binary()))
    members_of(found, values)
    if _depth(raw) < 100:
        # A text may end a number or a name anywhere in bytes that aren't UTF-8.
        is_utf8 = raw.decode(errors="replace").encode(errors="replace") == raw
        assert not is_utf8 or bool(values.kinds[0]) == is_json(raw), f"{raw!r}: {values.kinds}"
    _take([(raw, raw)], options)


def _depth(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{")


def schema(choices: Choices, options: int) -> None:
    """Read rows with a schema of any shape."""
    row = _schema(choices, 3)
    if choices.byte() % 4:
        row = {"type": "struct", "fields": [_schema(choices, 2) for _ in range(1 + choices.byte() % 4)]}
    sides = [{**row, "optional": True, "name": "s.Value", "field": side} for side in ("before", "after")]
    envelope = {"type": "struct", "fields": sides, "name": "s.Envelope"}
    pairs = []
    for _ in range(1 + choices.byte() % 3):
        value: Any = _value(choices, row, 4)
        if not options & 2:
            op = choices.one_of(("c", "u", "d", "r", "t", ""))
            value = {"before": None, "after": value, "op": op, "source": {}}
        message = {"schema": row if options & 2 else envelope, "payload": value}
        pairs.append((b'{"id":%d}' % choices.byte(), choices.damaged(_written(message))))
    _take(pairs, options)


def _written(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=True).encode()


def _schema(choices: Choices, depth: int) -> dict[str, Any]:
    kind = choices.one_of(_KINDS[:9] if not depth else _KINDS)
    found: dict[str, Any] = {"type": kind, "optional": bool(choices.byte() % 2)}
    found["field"] = choices.one_of(_NAMES) if choices.byte() % 8 else choices.text()
    if choices.byte() % 2:
        found |= {"name": choices.one_of(_LOGICAL), "version": choices.one_of((1, "1", None, -1))}
    if choices.byte() % 2:
        scale = choices.one_of(("2", "0", "-1", "38", "39", "1000000000", "x", 2, None, "9" * 5000))
        found["parameters"] = {"scale": scale, "connect.decimal.precision": choices.one_of(("9", "99", "x"))}
    if kind == "struct":
        found["fields"] = choices.some(3, lambda: _schema(choices, depth - 1))
    elif kind == "array":
        found["items"] = _schema(choices, depth - 1)
    elif kind == "map":
        found |= {"keys": _schema(choices, 0), "values": _schema(choices, depth - 1)}
    if choices.byte() % 16 == 15:
        found[choices.one_of(("type", "fields", "items", "optional", "name"))] = choices.one_of(_PLAIN)
    return found


def _value(choices: Choices, form: Any, depth: int) -> Any:
    kind = form.get("type") if isinstance(form, dict) else None
    fields = form.get("fields") if isinstance(form, dict) else None
    if choices.byte() % 8 == 7 or not depth:
        return choices.one_of(_PLAIN)
    if kind == "struct" and isinstance(fields, list):
        return {str(one.get("field")): _value(choices, one, depth - 1) for one in fields}
    if kind == "array":
        return choices.some(3, lambda: _value(choices, form.get("items"), depth - 1))
    if kind == "map":
        return {str(choices.byte()): _value(choices, form.get("values"), depth - 1) for _ in range(2)}
    if kind in ("string", "bytes"):
        return choices.text()
    return choices.integer(64) if choices.byte() % 2 else choices.one_of(_PLAIN)


def registry(choices: Choices, options: int) -> None:
    """Read messages with a JSON Schema."""
    known = Registered()
    number = known.add("JSON", choices.chunk().decode(errors="replace"))
    pairs: list[tuple[bytes | None, bytes | None]] = []
    while choices.left and len(pairs) < 4:
        pairs.append((b'{"id":1}', choices.damaged(head(number) + choices.chunk())))
    take(pairs, JsonConverter(), framed(known, "json_schema"), unwrapped=bool(options & 2))


PARTS: Final[tuple[Callable[[Choices, int], None], ...]] = (texts, text, schema, registry)


def seeds() -> Iterator[bytes]:
    """Yield texts, schemas, and random choices."""
    for one in _TEXTS:
        yield b"\0\0" + chunk(b'{"id":1}') + chunk(one)
        yield b"\1\0" + one
    for one in _SCHEMAS:
        yield b"\3\0" + chunk(one) + b"".join(chunk(text) + b"\0" for text in _TEXTS[:3])
    rng = random.Random(1)
    for number in range(150):
        yield bytes([2, number]) + rng.randbytes(rng.randrange(20, 300))
