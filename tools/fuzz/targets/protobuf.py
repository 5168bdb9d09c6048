"""Protobuf out of topics, with schemas in a registry: any schema, and any messages of it.

The first byte of an input chooses a part, the second the options:

=========== ===========================================================================
`text`      the text of a schema with its length before it, then messages
`built`     choices: the text of a schema (recursive, nested, deep), then messages
=========== ===========================================================================
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.kafka.registry import RegisteredSchema
from airflow_cdc_provider.sources.debezium.converters import WRONG_SCHEMAS, TextConverter
from airflow_cdc_provider.sources.debezium.protobuf_json import protobuf_to_json
from airflow_cdc_provider.sources.debezium.protobuf_program import compile_protobuf
from airflow_cdc_provider.sources.debezium.registered import parsed_protobuf
from tests.unit.sources.debezium.every_protobuf_type import EVERYTHING
from tests.unit.sources.debezium.registry_writers import Registered, head
from tools.fuzz.choices import Choices, chunk
from tools.fuzz.targets.topics import framed, is_json, take

_SCALARS: Final = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
    *("sfixed32", "sfixed64", "bool", "string", "bytes"),
)
_KNOWN: Final = {
    "google.protobuf.Timestamp": "google/protobuf/timestamp.proto",
    "google.protobuf.Int64Value": "google/protobuf/wrappers.proto",
    "google.protobuf.Struct": "google/protobuf/struct.proto",
    "google.type.Date": "google/type/date.proto",
    "google.type.TimeOfDay": "google/type/timeofday.proto",
    "confluent.type.Decimal": "confluent/type/decimal.proto",
}
_LABELS: Final = ("", "optional ", "repeated ")


def run(data: bytes) -> None:
    """Read messages with a schema; compare with Google's library what is read.

    Raises:
        AssertionError: A promise is broken, or any other error.
    """
    if len(data) < 2:
        return
    choices = Choices(data[2:])
    text = _schema(choices) if data[0] % 2 else choices.chunk().decode(errors="replace")
    raws = choices.some(4, lambda: choices.chunk() if choices.byte() % 2 else _message(choices))
    _compare(text, raws)
    registry = Registered()
    number = registry.add("PROTOBUF", text)
    paths = (b"\0", b"\2\0", b"\2\2", b"\4\0\0", choices.take(4))
    pairs = [(b"key", head(number) + choices.one_of(paths) + raw) for raw in raws]
    take(pairs, TextConverter(), framed(registry, "protobuf"), unwrapped=bool(data[1] & 2))


def _compare(text: str, raws: list[bytes]) -> None:
    """What is read is JSON, and Google's library reads it, too."""
    compiled = _compiled(text)
    if compiled is None:
        return
    program, message = compiled
    found, broken = protobuf_to_json(program, *binary_buffer(pa.array(raws, pa.binary())))
    found.validate(full=True)
    for raw, one, fault in zip(raws, found.to_pylist(), broken.tolist(), strict=True):
        if not fault:
            assert one is not None
            try:
                one.decode()
            except UnicodeDecodeError:
                continue
            assert is_json(one), one
            try:
                message.FromString(raw)
            except DecodeError as error:  # it also refuses a text that a later one replaces
                assert "bad UTF-8" in str(error), "Google's library doesn't read it"


@lru_cache(maxsize=512)
def _compiled(text: str) -> tuple[Any, Any] | None:
    try:
        files = parsed_protobuf(RegisteredSchema("PROTOBUF", text))
        if isinstance(files, str):
            return None
        program, _ = compile_protobuf(files, (0,))
    except WRONG_SCHEMAS:
        return None
    pool = DescriptorPool()
    for file in files.values():
        pool.Add(file)
    *_, own = files.values()
    name = f"{own.package}.{own.message_type[0].name}".strip(".")
    return program, GetMessageClass(pool.FindMessageTypeByName(name))


def _schema(choices: Choices) -> str:
    count = 1 + choices.byte() % 3
    types = [f"M{number}" for number in range(count)]
    body = []
    for number, name in enumerate(types):
        known = (*_SCALARS, "E", *_KNOWN, *types[number + 1 :], *(types if choices.byte() % 8 == 7 else ()))
        lines = []
        for field in range(choices.byte() % 6):
            label = choices.one_of(_LABELS)
            kind = choices.one_of(known)
            place = choices.one_of((field + 1, field + 1, 20_000 + field, 536_870_911 - field))
            shape = choices.byte() % 8
            if shape == 7:
                lines.append(f"map<{choices.one_of(_SCALARS[2:14])}, {kind}> f{field} = {place};")
            elif shape == 6:
                lines.append(
                    f"oneof o{field} {{ {kind} f{field} = {place}; int32 g{field} = {place - 100}; }}"
                )
            else:
                lines.append(f"{label}{kind} f{field} = {place};")
        body.append(f"message {name} {{ {' '.join(lines)} }}")
    envelope = "message Envelope { string op = 1; M0 after = 2; }\n" if choices.byte() % 2 else ""
    enum = "enum E { NONE = 0; ONE = 1; MINUS = -1; }\n"
    text = envelope + "\n".join(body)
    imports = "".join(f'import "{path}";\n' for path in sorted({p for n, p in _KNOWN.items() if n in text}))
    return f'syntax = "proto3";\npackage p;\n{imports}{enum}{text}'


def _message(choices: Choices, depth: int = 3) -> bytes:
    out = b""
    for _ in range(choices.byte() % 5):
        number, wire = 1 + choices.byte() % 8, choices.byte() % 6
        inside = _message(choices, depth - 1) if depth and choices.byte() % 2 else choices.chunk()
        body = {
            0: choices.take(1 + choices.byte() % 10),
            1: choices.take(8),
            2: _varint(len(inside)) + inside,
            5: choices.take(4),
        }
        out += _varint(number << 3 | wire) + body.get(wire, b"")
    return out


def _varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def seeds() -> Iterator[bytes]:
    """Yield a schema of every type, and random choices."""
    text = EVERYTHING.encode()
    for message in (b"\x0a\0", b"\xa2\x01\x02\x08\x01", b"\x70\x01\xa0\x06\x05"):
        yield b"\0\0" + chunk(text) + b"\1\1" + chunk(message)
    rng = random.Random(1)
    for number in range(200):
        yield bytes([1, number]) + rng.randbytes(rng.randrange(20, 300))
