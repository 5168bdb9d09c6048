"""Compiles schemas of a registry, each id once, to readers of messages with a schema id."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from functools import lru_cache, partial
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import span_column
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.kafka.registry import RegisteredSchema, UnreadableSchema
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.debezium.avro_json import avro_to_json
from airflow_cdc_provider.sources.debezium.avro_program import compile_avro
from airflow_cdc_provider.sources.debezium.converters import (
    DENIED_ID,
    NOT_LOOKED_UP,
    UNKNOWN_ID,
    UNREADABLE_ID,
    WRONG_SCHEMA,
    WRONG_SCHEMAS,
    Compiled,
)
from airflow_cdc_provider.sources.debezium.json_schema import connect_of_json_schema
from airflow_cdc_provider.sources.debezium.protobuf_json import protobuf_to_json
from airflow_cdc_provider.sources.debezium.protobuf_program import compile_protobuf, parse_protobuf

log = logger(__name__)

Written = Literal["avro", "protobuf", "json_schema"]

MOST_UNREADABLE: Final = 100
MOST_SCHEMAS: Final = 1_000
_LEAST_PART: Final = 0.1
"""The part of these that each slice of a batch may look up, however many there are."""
_MOST_BYTES: Final = 32 << 20
_MOST_SECONDS: Final = 300.0


class Registered(Protocol):
    """Returns schemas by id, as ``kafka.registry.Registry`` does. Picklable."""

    def schema_of(self, schema_id: int) -> RegisteredSchema | UnreadableSchema | None:
        """Return a schema, None if there is none."""


class RegisteredSchemas:
    """Compiles schemas of a registry on first use. Picklable, without the compiled schemas.

    Lookups are bounded, because messages of a few bytes can name any number of ids: after
    :data:`MOST_UNREADABLE` ids that the registry has no schema for, or 5 minutes for these and for compiling,
    and after :data:`MOST_SCHEMAS` schemas, or 32 MiB of these, further ids are not looked up.

    Args:
        registry: The schema registry.
        written: The message format.
        slices: How many readers there are of the topic at once, which share what may be looked up.
        unreadable: Ids of the topic that the registry had no schema for before, which aren't looked up again.
    """

    def __init__(
        self,
        registry: Registered,
        written: Written,
        slices: int = 1,
        unreadable: frozenset[int] = frozenset(),
    ) -> None:
        self._registry = registry
        self._part = max(1 / slices, _LEAST_PART)
        self._before = unreadable
        self._written: Written = written
        self._compiled: dict[tuple[int, tuple[int, ...]], Compiled | int] = {}
        self._unreadable: set[int] = set()
        self._seconds, self._bytes = 0.0, 0

    @property
    def unreadable(self) -> Set[int]:
        """The ids that were looked up, and that the registry had no schema for."""
        return self._unreadable

    @property
    def have_paths(self) -> bool:
        """Whether messages contain the path of their type in the schema."""
        return self._written == "protobuf"

    def compiled(self, schema_id: int, path: tuple[int, ...] = ()) -> Compiled | int:
        """Return the reader of a schema's messages, or the fault of such messages.

        Raises:
            TransientError: The registry doesn't answer.
            ConfigurationError: The registry rejects the request.
        """
        known = self._compiled.get((schema_id, path))
        if known is None:
            known = self._compile(schema_id, path)
            if known != NOT_LOOKED_UP:
                self._compiled[schema_id, path] = known
        return known

    def _compile(self, schema_id: int, path: tuple[int, ...]) -> Compiled | int:
        if schema_id in self._before:
            return UNKNOWN_ID
        left = (MOST_UNREADABLE - len(self._before)) * self._part
        is_full = len(self._unreadable) >= left or self._seconds > _MOST_SECONDS * self._part
        if is_full or len(self._compiled) >= MOST_SCHEMAS * self._part or self._bytes > _MOST_BYTES:
            return NOT_LOOKED_UP
        started = time.monotonic()
        found = self._registry.schema_of(schema_id)
        if not isinstance(found, RegisteredSchema):
            self._unreadable.add(schema_id)
            self._seconds += time.monotonic() - started
            return UNKNOWN_ID if found is None else DENIED_ID if found.denied else UNREADABLE_ID
        self._bytes += found.size
        kind, compile_schema = _FORMS[self._written]
        if found.type != kind:
            log.warning("schema %d of the registry is of type %s, not %s", schema_id, found.type, kind)
            return WRONG_SCHEMA
        started = time.monotonic()
        try:
            return compile_schema(found, path)
        except WRONG_SCHEMAS as error:
            log.warning(
                "can't compile schema %d of the registry: %s %.300s", schema_id, type(error).__name__, error
            )
            return WRONG_SCHEMA
        finally:
            self._seconds += time.monotonic() - started

    def __getstate__(self) -> dict[str, Any]:
        """Omit compiled schemas: compiling again is cheaper than sending them."""
        return {**self.__dict__, "_compiled": {}}


def _avro(schema: RegisteredSchema, path: tuple[int, ...]) -> Compiled:
    del path  # an Avro schema has one message type
    program, connect_schema = compile_avro(schema.text, [text for _, text in schema.references])
    return Compiled(partial(avro_to_json, program), connect_schema)


def _protobuf(schema: RegisteredSchema, path: tuple[int, ...]) -> Compiled:
    files = parsed_protobuf(schema)
    if isinstance(files, str):
        raise ValueError(files)
    program, connect_schema = compile_protobuf(files, path)
    return Compiled(partial(protobuf_to_json, program), connect_schema)


def _json_schema(schema: RegisteredSchema, path: tuple[int, ...]) -> Compiled:
    if schema.references:
        raise ValueError("a JSON Schema with references to other schemas")
    return Compiled(_unchanged, connect_of_json_schema(schema.text))


def _unchanged(data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Any]:
    """Return messages unchanged; the reader checks that they are JSON."""
    return span_column(pa.binary(), data, starts, ends), np.zeros(len(starts), np.int64)


@lru_cache(maxsize=8)
def parsed_protobuf(schema: RegisteredSchema) -> Mapping[str, Any] | str:
    """Parse a schema, once for all its message types; return why it is none."""
    try:
        return parse_protobuf(schema.text, schema.references)
    except ValueError as error:
        return str(error)


_FORMS: Final[Mapping[Written, tuple[str, Callable[[RegisteredSchema, tuple[int, ...]], Compiled]]]] = {
    "avro": ("AVRO", _avro),
    "protobuf": ("PROTOBUF", _protobuf),
    "json_schema": ("JSON", _json_schema),
}
