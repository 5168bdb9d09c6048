"""Schemas in a registry: Confluent's REST interface, as Apicurio, Karapace and Redpanda speak it too.

The registry's address, login and TLS come from an Airflow connection of type ``http``: host, port and schema,
login and password for basic authentication, and in the extra

* ``path``: what follows host and port, for example ``/apis/ccompat/v7``;
* settings of confluent-kafka's ``SchemaRegistryClient``, whose names have a dot (``ssl.ca.location``,
  ``bearer.auth.credentials.source``, ``bearer.auth.token`` ...), or are ``timeout`` (seconds) or ``proxy``.

Nothing of it is ever shown, nor goes into the declaration.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError

log = logging.getLogger(__name__)

Subjects = Literal["topic", "record", "topic_record"]
"""What a subject is named by: ``<topic>-value``, ``<record>`` or ``<topic>-<record>``."""

_TIMEOUT_SECONDS: Final = 10
_PLAIN_SETTINGS: Final = frozenset({"timeout", "proxy"})
_INCOMPATIBLE: Final = 409
_UNPROCESSABLE: Final = 422
_NOT_FOUND: Final = 404
_NO_SUCH_SCHEMA: Final = (40401, 40402, 40403)
"""Codes of the subject, version or schema that isn't there, told from an address that isn't a registry's."""
_FIRST_WAITS_SECONDS: Final = (0.2, 0.5, 1.0)
_WAIT_SECONDS: Final = 2.0
"""How long to wait at first, and then each time, before a registry is asked again."""
_MOST_WAITED_SECONDS: Final = 30.0
"""For all ids together that aren't there: whatever messages name, reading goes on."""
_MOST_REFERENCES: Final = 200
_NO_SUCH_RIGHT: Final = (401, 403)
_LATER: Final = frozenset({408, 425, 429})


class Described(Protocol):
    """A schema in use, as the encoder tells it."""

    @property
    def topic(self) -> str:
        """Topic of the records."""

    @property
    def side(self) -> Literal["key", "value"]:
        """Which part of them it describes."""

    @property
    def record(self) -> str:
        """Full name of the record or message; empty for none."""

    @property
    def type(self) -> str:
        """``AVRO``, ``PROTOBUF`` or ``JSON``."""

    @property
    def text(self) -> str:
        """The schema."""


@dataclass(frozen=True)
class RegistrySettings:
    """Where a registry is and how schemas are kept in it.

    Args:
        client: Settings of confluent-kafka's client, the address among them. They hold secrets.
        key_subjects: What subjects of keys are named by.
        value_subjects: Likewise of values.
        auto_register: Whether schemas that the registry doesn't have are registered.
        normalize: Whether the registry brings schemas into its normal form first.
    """

    client: Mapping[str, Any] = field(repr=False)
    key_subjects: Subjects = "topic"
    value_subjects: Subjects = "topic"
    auto_register: bool = True
    normalize: bool = False

    @property
    def address(self) -> str:
        """Host and port, for people."""
        return urlsplit(str(self.client["url"])).netloc.rpartition("@")[2]


def client_settings(connection: Mapping[str, Any], url: str = "") -> dict[str, Any]:
    """Return settings of the client.

    Args:
        connection: Values of an Airflow connection of type ``http``; empty for none.
        url: The registry's address, instead of the connection's.

    Raises:
        ConfigurationError: No address, or the extra has what the client doesn't know.
    """
    extra = dict(connection.get("extra") or {})
    path = str(extra.pop("path", ""))
    unknown = sorted(name for name in extra if "." not in name and name not in _PLAIN_SETTINGS)
    if unknown or "basic.auth.user.info" in extra:
        raise ConfigurationError(
            "the registry's connection has an extra that says nothing here",
            expected="path, timeout, proxy, or settings of confluent-kafka's SchemaRegistryClient but "
            "basic.auth.user.info, for which login and password stand",
            found=", ".join(unknown) or "basic.auth.user.info",
        )
    settings: dict[str, Any] = {"timeout": _TIMEOUT_SECONDS, **extra}
    settings["url"] = url or _address(connection, path)
    if login := connection.get("login"):
        settings["basic.auth.user.info"] = f"{login}:{connection.get('password') or ''}"
    return settings


def _address(connection: Mapping[str, Any], path: str) -> str:
    host = str(connection.get("host") or "")
    if not host:
        raise ConfigurationError(
            "it isn't known where the registry is",
            expected="a host in the Airflow connection that option registry.connection names, or option "
            "registry.url",
        )
    lead = "" if "://" in host else f"{connection.get('schema') or 'http'}://"
    port = f":{connection['port']}" if connection.get("port") else ""
    return f"{lead}{host.rstrip('/')}{port}/{path.strip('/')}".rstrip("/")


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema that a registry has.

    Args:
        type: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: The schema.
        references: Names and texts of schemas that it needs, each after what it needs itself.
    """

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Wanted:
    """A schema that is looked for by its id, for messages."""

    id: int

    def __str__(self) -> str:
        """Name it."""
        return f"schema {self.id}"


class RegistryAway(TransientError):
    """The registry doesn't answer, or has trouble of its own."""


@dataclass(frozen=True)
class Patience:
    """How long a registry is asked again for the schemas of ids.

    Args:
        unknown_seconds: An id that it doesn't have: a copy that only reads may hear of it later.
        away_seconds: When it doesn't answer.
    """

    unknown_seconds: float = 6.0
    away_seconds: float = 0.0


class Registry:
    """Gives schemas their ids, by registering them or looking them up; and ids their schemas.

    It may go to other processes, where it connects anew. Not for several threads at once.

    Args:
        settings: Where it is, and how it is used.
        sleep: Waits for so many seconds.
        patience: How long it is asked again.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        sleep: Callable[[float], None] = time.sleep,
        patience: Patience = Patience(),
    ) -> None:
        self.settings = settings
        self.patience = patience
        self._sleep = sleep
        self._waited = 0.0
        self._client: Any = None
        self._ids: dict[tuple[str, str, str], int] = {}
        self._schemas: dict[int, RegisteredSchema | None] = {}

    def schema_id(self, schema: Described) -> int:
        """Return a schema's id; the registry is asked once for each schema and subject.

        Args:
            schema: The schema.

        Raises:
            ConfigurationError: The registry refuses it, as incompatible or wrong; or doesn't have it and
                ``auto_register`` is off; or refuses us. Its own words are shown.
            RegistryAway: It doesn't answer, or has trouble of its own.
        """
        subject = self.subject(schema)
        name = (subject, schema.type, schema.text)
        if name not in self._ids:
            self._ids[name] = self._ask(subject, schema)
        return self._ids[name]

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema that an id was given to; the registry is asked once for each id that it has.

        One that it doesn't have is asked for again for a while: a copy that only reads may not have heard of
        it yet.

        Args:
            schema_id: As it stands before a message's bytes.

        Returns:
            The schema with those that it refers to; None if the registry has no such id.

        Raises:
            ConfigurationError: The registry refuses us, or answers otherwise than it should.
            RegistryAway: It didn't answer for as long as it is waited for, or had trouble of its own.
        """
        if schema_id not in self._schemas:
            found = self._answered(schema_id)
            most = max(_MOST_WAITED_SECONDS, self.patience.unknown_seconds)
            for wait in _waits(self.patience.unknown_seconds):
                if found is not None or self._waited >= most:
                    break
                self._sleep(wait)
                self._waited += wait
                found = self._answered(schema_id)
            self._schemas[schema_id] = found
        return self._schemas[schema_id]

    def _answered(self, schema_id: int) -> RegisteredSchema | None:
        """Look an id up, again while the registry doesn't answer."""
        waits = _waits(self.patience.away_seconds)
        while True:
            try:
                return self._look_up(schema_id)
            except RegistryAway as error:
                wait = next(waits, None)
                if wait is None:
                    raise
                log.warning("the registry is waited for: %s", error)
                self._sleep(wait)

    def _look_up(self, schema_id: int) -> RegisteredSchema | None:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        asked = Wanted(schema_id)
        with self._errors("", asked):
            client = self._connected()
            try:
                found = client.get_schema(schema_id)
                references: dict[str, str] = {}
                self._add_references(client, found.references or (), references)
            except SchemaRegistryError as error:
                if error.http_status_code == _NOT_FOUND and error.error_code in _NO_SUCH_SCHEMA:
                    return None
                raise
            if not isinstance(found.schema_str, str):
                raise ValueError("an answer without a schema")
            return RegisteredSchema(found.schema_type or "AVRO", found.schema_str, tuple(references.items()))

    def _add_references(self, client: Any, references: Any, found: dict[str, str]) -> None:
        """Add what a schema refers to, each after what it refers to itself."""
        for one in references:
            if one.name in found or len(found) >= _MOST_REFERENCES:
                continue
            own = client.get_version(one.subject, one.version).schema
            found[one.name] = ""
            self._add_references(client, own.references or (), found)
            del found[one.name]
            found[one.name] = own.schema_str

    def subject(self, schema: Described) -> str:
        """Return the subject that a schema is kept under.

        Raises:
            ConfigurationError: Subjects are named by records, and it describes none.
        """
        settings = self.settings
        strategy = settings.key_subjects if schema.side == "key" else settings.value_subjects
        if strategy == "topic":
            return f"{schema.topic}-{schema.side}"
        if not schema.record:
            raise ConfigurationError(
                f"the {schema.side} of topic {schema.topic} is no record that a subject could be named by",
                expected=f"publish.registry.{schema.side}_subjects: topic",
                found=strategy,
            )
        return schema.record if strategy == "record" else f"{schema.topic}-{schema.record}"

    def _ask(self, subject: str, schema: Described) -> int:
        from confluent_kafka.schema_registry import Schema

        known = Schema(schema.text, schema.type)
        normalize = self.settings.normalize
        with self._errors(subject, schema):
            client = self._connected()
            if self.settings.auto_register:
                return int(client.register_schema(subject, known, normalize_schemas=normalize))
            return int(client.lookup_schema(subject, known, normalize_schemas=normalize).schema_id)

    def _connected(self) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        if self._client is None:
            try:
                self._client = SchemaRegistryClient(dict(self.settings.client))
            except (ValueError, TypeError, OSError) as error:
                # Its words are of names and types of settings, or of a file; never of a secret's value.
                names = ", ".join(sorted(set(self.settings.client) - {"timeout"}))
                raise ConfigurationError(
                    "the registry's connection is wrong",
                    expected="settings that confluent-kafka's SchemaRegistryClient takes",
                    found=f"{type(error).__name__} with {names}",
                ) from None
        return self._client

    @contextmanager
    def _errors(self, subject: str, schema: Described | Wanted) -> Iterator[None]:
        """Turn what the client raises into errors that say what to do."""
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        where = f"the registry at {self.settings.address}"
        try:
            yield
        except SchemaRegistryError as error:
            raise _of_status(error, where, subject, schema) from error
        except httpx.TransportError as error:
            raise RegistryAway(
                f"{where} doesn't answer",
                found=f"{type(error).__name__}: {error}",
                remedy="nothing is lost; see whether it runs, and whether the connection has its address",
            ) from error
        except OAuthTokenError as error:
            refused = error.status_code is not None and error.status_code < 500
            kind: Callable[..., Exception] = ConfigurationError if refused else RegistryAway
            raise kind(f"no token was given for {where}", found=f"HTTP {error.status_code}") from None
        except (
            ValueError,
            KeyError,
            TypeError,  # what the client fails with where an answer has no body
            AttributeError,
            httpx.RequestError,  # redirects without end, a body in no known coding
            httpx.InvalidURL,
        ) as error:
            raise ConfigurationError(
                f"{where} answers otherwise than Confluent's REST interface",
                found=type(error).__name__,
                remedy="look at its address; Apicurio's interface is under /apis/ccompat/v7",
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind."""
        return {**self.__dict__, "_client": None}


def _waits(seconds: float) -> Iterator[float]:
    """Yield how long to wait before each further try, so much in all."""
    left = seconds
    for wait in chain(_FIRST_WAITS_SECONDS, repeat(_WAIT_SECONDS)):
        if left <= 0:
            return
        yield min(wait, left)
        left -= wait


def _of_status(error: Any, where: str, subject: str, schema: Described | Wanted) -> Exception:
    status, reason = error.http_status_code, str(error.error_message)
    what = str(schema) if isinstance(schema, Wanted) else f"the {schema.side} of topic {schema.topic}"
    if status >= 500 or status in _LATER:
        return RegistryAway(f"{where} has trouble", found=f"HTTP {status}: {reason}")
    if status in _NO_SUCH_RIGHT:
        return ConfigurationError(
            f"{where} refuses us",
            found=f"HTTP {status}: {reason}",
            remedy="look at login and password, or the token, of the registry's connection",
        )
    if status == _INCOMPATIBLE:
        return ConfigurationError(
            f"{where} refuses the schema of {what}: it is incompatible with what subject {subject} has",
            found=reason,
            remedy="nothing was sent. Give the subject a compatibility level that allows the change, or name "
            "the topic anew",
        )
    if status == _UNPROCESSABLE:
        return ConfigurationError(f"{where} refuses the schema of {what}", found=reason)
    if status == _NOT_FOUND and isinstance(schema, Wanted):
        return ConfigurationError(
            f"{where} doesn't know how to give {what}",
            found=f"HTTP {status}: {reason}",
            remedy="look at its address; Apicurio's interface is under /apis/ccompat/v7",
        )
    if status == _NOT_FOUND:
        return ConfigurationError(
            f"{where} doesn't have the schema of {what} under subject {subject}",
            found=reason,
            remedy="register it, which airflow cdc events shows with publish.schemas, or set "
            "publish.registry.auto_register",
        )
    return ConfigurationError(f"{where} refuses a request", found=f"HTTP {status}: {reason}")
