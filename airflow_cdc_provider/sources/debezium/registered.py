"""Compiles schemas of a registry, each id once, to readers of messages with a schema id."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
_LEAST_UNREADABLE: Final = 10
"""How many ids each slice of a batch may look up in vain, however many there are."""
_MOST_REMEMBERED: Final = 10_000
"""Most ids of a topic that later batches know."""
_MOST_BYTES: Final = 32 << 20
_MOST_SECONDS: Final = 300.0


class Registered(Protocol):
    """Returns schemas by id, as ``kafka.registry.Registry`` does. Picklable."""

    def schema_of(self, schema_id: int) -> RegisteredSchema | UnreadableSchema | None:
        """Return a schema, None if there is none."""


class RegisteredSchemas:
    """Compiles schemas of a registry on first use. Picklable, without the compiled schemas.

    Lookups are bounded, because messages of a few bytes can name any number of ids: after
    :data:`MOST_UNREADABLE` ids of the topic that the registry has no schema for, in all slices, but at least
    10 further ones here, or 5 minutes for these, only ids that the registry had schemas for before are looked
    up; and none after :data:`MOST_SCHEMAS` schemas, 32 MiB of these, or 5 minutes of compiling.

    Args:
        registry: The schema registry.
        written: The message format.
        slices: How many readers there are of the topic at once.
        before: By id of the topic that was looked up before, whether the registry had a schema. Those without
            aren't looked up again.
    """

    def __init__(
        self,
        registry: Registered,
        written: Written,
        slices: int = 1,
        before: Mapping[int, bool] | None = None,
    ) -> None:
        self._registry = registry
        self._before = dict(before or {})
        in_vain = list(self._before.values()).count(False)
        self._left = max(MOST_UNREADABLE // slices - in_vain, _LEAST_UNREADABLE)
        self._written: Written = written
        self._compiled: dict[tuple[int, tuple[int, ...]], Compiled | int] = {}
        self._looked_up: dict[int, bool] = {}
        self._seconds, self._seconds_in_vain, self._bytes = 0.0, 0.0, 0

    @property
    def looked_up(self) -> Mapping[int, bool]:
        """By id that was looked up, whether the registry had a schema; empty if too many are known."""
        return self._looked_up if len(self._before) < _MOST_REMEMBERED else {}

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
        if self._before.get(schema_id) is False:
            return UNKNOWN_ID
        known = self._compiled.get((schema_id, path))
        if known is None:
            known = self._compile(schema_id, path)
            if known != NOT_LOOKED_UP:
                self._compiled[schema_id, path] = known
        return known

    def _compile(self, schema_id: int, path: tuple[int, ...]) -> Compiled | int:
        is_known = schema_id in self._before or schema_id in self._looked_up
        if not is_known and (self._left <= 0 or self._seconds_in_vain > _MOST_SECONDS):
            return NOT_LOOKED_UP
        is_full = len(self._compiled) >= MOST_SCHEMAS or self._bytes > _MOST_BYTES
        if is_full or self._seconds > _MOST_SECONDS:
            return NOT_LOOKED_UP
        started = time.monotonic()
        found = self._registry.schema_of(schema_id)
        self._looked_up[schema_id] = isinstance(found, RegisteredSchema)
        if not isinstance(found, RegisteredSchema):
            self._left -= 1
            self._seconds_in_vain += time.monotonic() - started
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
