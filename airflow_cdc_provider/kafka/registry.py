"""Client of schema registries with Confluent's REST interface (Apicurio, Karapace and Redpanda have it too).

The registry's addresses, login and TLS come from an Airflow connection of type ``http``: host (or several,
separated by commas), port and schema, login and password for basic authentication, and in the extra

* ``path``: the path after host and port, for example ``/apis/ccompat/v7``;
* settings of confluent-kafka's ``SchemaRegistryClient``: ``ssl.ca.location`` and others of TLS, which need
  ``https``, the default then; ``bearer.auth.credentials.source``, ``bearer.auth.token`` ...; ``timeout``
  (seconds) and ``proxy``.

None of them is ever logged, nor part of the declaration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from airflow_cdc_provider.connection_settings import check_files
from airflow_cdc_provider.exceptions import (
    CdcError,
    ConfigurationError,
    SchemaRejected,
    TransientError,
    from_extra,
)
from airflow_cdc_provider.kafka.registry_answers import MOST_BYTES, bound_answers
from airflow_cdc_provider.logs import logger

log = logger(__name__)

T = TypeVar("T")

Subjects = Literal["topic", "record", "topic_record"]
"""Subject name strategy: ``<topic>-value``, ``<record>`` or ``<topic>-<record>``."""

_TIMEOUT_SECONDS: Final = 10
_SETTINGS: Final = frozenset(
    {
        *("timeout", "proxy", "max.retries", "retries.wait.ms", "retries.max.wait.ms"),
        *("cache.capacity", "cache.latest.ttl.sec"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
        *(
            f"bearer.auth.{name}"
            for name in (
                *("credentials.source", "token", "logical.cluster", "identity.pool.id"),
                *("client.id", "client.secret", "scope", "issuer.endpoint.url", "issuer.endpoint.query"),
            )
        ),
    }
)
"""Allowed settings of confluent-kafka's client: its others name functions."""
_INCOMPATIBLE: Final = 409
_UNPROCESSABLE: Final = 422
_NOT_FOUND: Final = 404
_NO_SUCH_SCHEMA: Final = (40401, 40402, 40403)
"""Codes of a missing subject, version or schema; other 404 answers are not from a registry."""
_FIRST_WAITS_SECONDS: Final = (0.2, 0.5, 1.0)
_WAIT_SECONDS: Final = 2.0
"""Waits before the first retries, and before each later one."""
_MOST_WAITED_SECONDS: Final = 30.0
"""Maximum wait for all unknown ids together, so that invalid messages don't block reading."""
_MOST_REFERENCES: Final = 200
_KEPT_BYTES: Final = 64 << 20
"""Most bytes of schemas that are kept for later messages."""
_SHOWN_CHARACTERS: Final = 500
_NO_SUCH_RIGHT: Final = (401, 403)
_FORBIDDEN: Final = 403
_UNUSED_ID: Final = (1 << 31) - 1
"""An id that registries don't reach: the answer for it shows whether they answer at all."""
_LATER: Final = frozenset({408, 425, 429})


class EventSchema(Protocol):
    """A schema of records, as the encoder describes it."""

    @property
    def topic(self) -> str:
        """Topic of the records."""

    @property
    def side(self) -> Literal["key", "value"]:
        """The part of the records that it describes."""

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
    """Address of a registry, and how schemas are registered.

    Args:
        client: Settings of confluent-kafka's client, including the address. They contain secrets.
        key_subjects: Subject name strategy of keys.
        value_subjects: Subject name strategy of values.
        auto_register: Whether to register schemas that the registry doesn't have.
        normalize: Whether the registry normalizes schemas first.
    """

    client: Mapping[str, Any] = field(repr=False)
    key_subjects: Subjects = "topic"
    value_subjects: Subjects = "topic"
    auto_register: bool = True
    normalize: bool = False

    @property
    def urls(self) -> list[str]:
        """Addresses of the registry; all of them lead to the same schemas."""
        return [url.strip() for url in str(self.client["url"]).split(",")]


def client_settings(connection: Mapping[str, Any], url: str = "") -> dict[str, Any]:
    """Return settings of the client.

    Args:
        connection: Values of an Airflow connection of type ``http``; empty for none.
        url: The registry's addresses, separated by commas, instead of the connection's.

    Raises:
        ConfigurationError: The address is missing, or the extra has unknown settings.
    """
    extra = dict(connection.get("extra") or {})
    path = str(extra.pop("path", ""))
    wrong = [name for name, value in extra.items() if not isinstance(value, (str, int, float, bool))]
    if unknown := sorted(extra.keys() - _SETTINGS) or wrong:
        raise ConfigurationError(
            "the registry's connection has unknown or invalid settings in its extra",
            expected=f"texts and numbers: path, {', '.join(sorted(_SETTINGS))}",
            remedy="remove them; the connection's login and password are the login",
            found=", ".join(map(repr, unknown)),
        )
    if not isinstance(ca := extra.get("ssl.ca.location", False), str) and ca is not False:
        raise ConfigurationError(
            "invalid value for ssl.ca.location in the registry's connection",
            expected="a file or a folder; or false, which disables verification",
        )
    check_files(extra, "ssl.ca.location", folders=True)
    check_files(extra, "ssl.certificate.location", "ssl.key.location")
    settings: dict[str, Any] = {"timeout": _TIMEOUT_SECONDS, **extra}
    tls = sorted(name for name in extra if name.startswith("ssl."))
    settings["url"] = url or _address(connection, path, "https" if tls else "http")
    schemes = {urlsplit(one.strip()).scheme for one in settings["url"].split(",")}
    if schemes - ({"https"} if tls else {"http", "https"}):
        raise ConfigurationError(
            f"the registry's address doesn't use TLS, but its connection has {', '.join(tls)}"
            if tls
            else "the registry has an invalid address",
            expected="https://..." if tls else "http://... or https://...",
        )
    if login := connection.get("login"):
        settings["basic.auth.user.info"] = f"{login}:{connection.get('password') or ''}"
    return settings


def _address(connection: Mapping[str, Any], path: str, scheme: str) -> str:
    hosts = [host.strip() for host in str(connection.get("host") or "").split(",")]
    if not all(hosts):
        raise ConfigurationError(
            "the address of the registry is unknown",
            expected="a host in the Airflow connection that option registry.connection names, or option "
            "registry.url",
        )
    lead = f"{connection.get('schema') or scheme}://"
    port = f":{connection['port']}" if connection.get("port") else ""
    return ",".join(
        f"{'' if '://' in host else lead}{host.rstrip('/')}{port}/{path.strip('/')}".rstrip("/")
        for host in hosts
    )


def machine_identity(connection: Mapping[str, Any]) -> str:
    """Return the setting by which registries get tokens of this machine's identity; empty if none does."""
    source = (connection.get("extra") or {}).get("bearer.auth.credentials.source", "")
    return "" if source in ("", "OAUTHBEARER", "STATIC_TOKEN") else f"bearer.auth.credentials.source {source}"


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema in a registry.

    Args:
        type: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: The schema.
        references: Names and texts of referenced schemas, each after those that it refers to.
    """

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """Characters of all texts."""
        return len(self.text) + sum(len(text) for _, text in self.references)


@dataclass(frozen=True)
class UnreadableSchema:
    """The registry answers for other schemas, but not for this one.

    Args:
        denied: Whether it denies access; else its answer is an error, too large or malformed.
    """

    denied: bool


@dataclass(frozen=True)
class SchemaId:
    """A schema that is looked up by id, for messages."""

    id: int

    def __str__(self) -> str:
        """Return its description."""
        return f"schema {self.id}"


class RegistryUnavailable(TransientError):
    """The registry doesn't answer, or reports an error of its own."""


@dataclass(frozen=True)
class RetryTimeouts:
    """How long lookups of schemas by id are retried.

    Args:
        unknown_seconds: Retries for an unknown id: a read-only replica may receive it later.
        unavailable_seconds: Retries while the registry doesn't answer.
    """

    unknown_seconds: float = 6.0
    unavailable_seconds: float = 0.0


class Registry:
    """Returns the ids of schemas, by registering them or looking them up, and the schemas of ids.

    If it has several addresses, it uses one until that doesn't answer or reports an error, and then the next.

    It can be pickled to other processes, which connect again. Not thread-safe.

    Args:
        settings: Address and use of the registry.
        sleep: Waits for a number of seconds.
        patience: How long lookups are retried.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        sleep: Callable[[float], None] = time.sleep,
        patience: RetryTimeouts = RetryTimeouts(),
    ) -> None:
        self.settings = settings
        self.patience = patience
        with from_extra("registry"):
            import confluent_kafka.schema_registry  # noqa: F401
        self._sleep = sleep
        self._waited = 0.0
        self._client: Any = None
        self._url = 0
        self._ids: dict[tuple[str, str, str], int] = {}
        self._schemas: dict[int, RegisteredSchema | UnreadableSchema | None] = {}
        self._kept_bytes = 0

    def schema_id(self, schema: EventSchema) -> int:
        """Return a schema's id; cached for each schema and subject.

        Args:
            schema: The schema.

        Returns:
            The id.

        Raises:
            SchemaRejected: The registry rejects it as incompatible or invalid, or doesn't have it while
                ``auto_register`` is off. The message contains its reason.
            ConfigurationError: The registry denies access, or is not a registry.
            RegistryUnavailable: It doesn't answer, or reports an error of its own.
        """
        subject = self.subject(schema)
        name = (subject, schema.type, schema.text)
        if name not in self._ids:
            self._ids[name] = self._at_an_address(lambda: self._register_or_look_up(subject, schema))
        return self._ids[name]

    def schema_of(self, schema_id: int) -> RegisteredSchema | UnreadableSchema | None:
        """Return the schema of an id; cached.

        Other lookups are retried for a while: a read-only replica may not have received the schema yet.

        Args:
            schema_id: The id in a message's header.

        Returns:
            The schema with those that it refers to; None if the registry has no such id.

        Raises:
            ConfigurationError: The registry denies access to all schemas, or is not a registry.
            RegistryUnavailable: It didn't answer within the retry timeout, or reported an error of its own,
                for any schema.
        """
        if schema_id not in self._schemas:
            found = self._answered(schema_id)
            most = max(_MOST_WAITED_SECONDS, self.patience.unknown_seconds)
            for wait in _waits(self.patience.unknown_seconds):
                if isinstance(found, RegisteredSchema) or self._waited >= most:
                    break
                self._sleep(wait)
                self._waited += wait
                found = self._answered(schema_id)
            if isinstance(found, RegisteredSchema):
                self._kept_bytes += found.size
                if self._kept_bytes > _KEPT_BYTES:
                    self._schemas.clear()
                    self._kept_bytes = found.size
            self._schemas[schema_id] = found
        return self._schemas[schema_id]

    def _answered(self, schema_id: int) -> RegisteredSchema | UnreadableSchema | None:
        """Look up an id, and retry while the registry doesn't answer for any."""
        waits = _waits(self.patience.unavailable_seconds)
        while True:
            try:
                return self._at_an_address(lambda: self._look_up(schema_id))
            except (ConfigurationError, RegistryUnavailable) as error:
                status = getattr(error.__cause__, "http_status_code", 0)
                if self._answers_others(status):
                    log.warning("schema %d can't be read: %s", schema_id, error)
                    return UnreadableSchema(status in _NO_SUCH_RIGHT)
                wait = next(waits, None) if isinstance(error, RegistryUnavailable) else None
                if wait is None:
                    raise
                log.warning("waiting for the registry: %s", error)
                self._sleep(wait)

    def _answers_others(self, status: int) -> bool:
        """Return whether the registry answers now, so that the error of a schema is of that schema alone.

        The answer for another id proves it. A registry may deny that, too: then its root proves it. The root
        proves nothing about the login (401), nor about the store of schemas (500).
        """
        with suppress(CdcError):
            self._look_up(_UNUSED_ID)
            return True
        if status == _FORBIDDEN:
            with suppress(CdcError), self._errors("", SchemaId(_UNUSED_ID)):
                self._connected()._rest_client.get("")
                return True
        return False

    def _at_an_address(self, request: Callable[[], T]) -> T:
        """Send a request to the address in use, or to the first of the others that answers."""
        for _ in self.settings.urls[1:]:
            try:
                return request()
            except RegistryUnavailable as error:
                log.warning("trying the registry's next address: %s", error)
                self._client = None
                self._url = (self._url + 1) % len(self.settings.urls)
        return request()

    def _look_up(self, schema_id: int) -> RegisteredSchema | None:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        with self._errors("", SchemaId(schema_id)):
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
        """Add the references of a schema, each after its own references."""
        for one in references:
            if one.name in found or len(found) >= _MOST_REFERENCES:
                continue
            own = client.get_version(one.subject, one.version).schema
            if not isinstance(one.name, str) or not isinstance(own.schema_str, str):
                raise ValueError("a reference without a name or a schema")
            found[one.name] = own.schema_str
            if sum(map(len, found.values())) > MOST_BYTES:
                raise ValueError("schemas that are too large")
            self._add_references(client, own.references or (), found)
            found[one.name] = found.pop(one.name)

    def subject(self, schema: EventSchema) -> str:
        """Return the subject of a schema.

        Raises:
            SchemaRejected: The strategy needs a record name, and the schema has none.
        """
        settings = self.settings
        strategy = settings.key_subjects if schema.side == "key" else settings.value_subjects
        if strategy == "topic":
            return f"{schema.topic}-{schema.side}"
        if not schema.record:
            raise SchemaRejected(
                f"the {schema.side} of topic {schema.topic} is no record with a name for the subject",
                expected=f"publish.registry.{schema.side}_subjects: topic",
                found=strategy,
            )
        return schema.record if strategy == "record" else f"{schema.topic}-{schema.record}"

    def _register_or_look_up(self, subject: str, schema: EventSchema) -> int:
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
                urls = self.settings.urls
                retries = {"max.retries": 0} if len(urls) > 1 else {}
                self._client = SchemaRegistryClient(
                    {**retries, **self.settings.client, "url": urls[self._url]}
                )
                bound_answers(self._client)
            except (ValueError, TypeError, OSError) as error:
                # The message has names and types of settings, or a file, but never a secret's value.
                names = ", ".join(sorted(set(self.settings.client) - {"timeout"}))
                raise ConfigurationError(
                    "the registry's connection is invalid",
                    expected="settings that confluent-kafka's SchemaRegistryClient accepts",
                    found=f"{type(error).__name__} with {names}",
                ) from None
        return self._client

    @contextmanager
    def _errors(self, subject: str, schema: EventSchema | SchemaId) -> Iterator[None]:
        """Convert the client's exceptions to this provider's errors."""
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        where = f"the registry at {urlsplit(self.settings.urls[self._url]).netloc.rpartition('@')[2]}"
        try:
            yield
        except SchemaRegistryError as error:
            raise _status_error(error, where, subject, schema) from error
        except httpx.TransportError as error:
            raise RegistryUnavailable(
                f"{where} doesn't answer",
                found=f"{type(error).__name__}: {error}",
                remedy="nothing is lost; check that it runs, and the address in the connection",
            ) from error
        except OAuthTokenError as error:
            denied = error.status_code is not None and error.status_code < 500
            kind: Callable[..., Exception] = ConfigurationError if denied else RegistryUnavailable
            raise kind(f"no token was issued for {where}", found=f"HTTP {error.status_code}") from None
        except (
            ValueError,
            KeyError,
            TypeError,  # raised by the client for an answer without body
            AttributeError,
            RecursionError,  # JSON of many levels
            httpx.RequestError,  # too many redirects, unknown content encoding
            httpx.InvalidURL,
        ) as error:
            raise ConfigurationError(
                f"{where} doesn't answer like Confluent's REST interface",
                found=type(error).__name__,
                remedy="check its address; Apicurio's interface is under /apis/ccompat/v7",
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connection."""
        return {**self.__dict__, "_client": None}


def _waits(seconds: float) -> Iterator[float]:
    """Yield the wait before each retry, up to a total."""
    left = seconds
    for wait in chain(_FIRST_WAITS_SECONDS, repeat(_WAIT_SECONDS)):
        if left <= 0:
            return
        yield min(wait, left)
        left -= wait


def _status_error(error: Any, where: str, subject: str, schema: EventSchema | SchemaId) -> Exception:
    status, reason = error.http_status_code, str(error.error_message)[:_SHOWN_CHARACTERS]
    what = str(schema) if isinstance(schema, SchemaId) else f"the {schema.side} of topic {schema.topic}"
    if status >= 500 or status in _LATER:
        return RegistryUnavailable(f"{where} reports an error", found=f"HTTP {status}: {reason}")
    if status in _NO_SUCH_RIGHT:
        return ConfigurationError(
            f"{where} denies access",
            found=f"HTTP {status}: {reason}",
            remedy="check login and password, or the token, of the registry's connection",
        )
    if status == _INCOMPATIBLE:
        return SchemaRejected(
            f"{where} rejects the schema of {what}: it is incompatible with those of subject {subject}",
            found=reason,
            remedy="set a compatibility level of the subject that allows the change, or use another topic "
            "name",
        )
    if status == _UNPROCESSABLE:
        return SchemaRejected(f"{where} rejects the schema of {what}", found=reason)
    if status == _NOT_FOUND and isinstance(schema, SchemaId):
        return ConfigurationError(
            f"{where} has no endpoint for {what}",
            found=f"HTTP {status}: {reason}",
            remedy="check its address; Apicurio's interface is under /apis/ccompat/v7",
        )
    if status == _NOT_FOUND:
        return SchemaRejected(
            f"{where} doesn't have the schema of {what} under subject {subject}",
            found=reason,
            remedy="register it (airflow cdc events prints it with publish.schemas), or set "
            "publish.registry.auto_register",
        )
    return ConfigurationError(f"{where} rejects a request", found=f"HTTP {status}: {reason}")
