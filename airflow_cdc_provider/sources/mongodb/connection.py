"""Connections: a client from an Airflow connection's values, raw cursors, errors by what the caller must do.

A connection is what Airflow's ``mongo`` and ``cdc_mongodb`` types hold: host (one, several by comma, or a
whole ``mongodb://`` string), port, login, password, schema (the database that keeps the user), and in
``extra`` any option of a MongoDB connection string by its name, besides ``srv`` and ``ssl`` as Airflow's own
hook has them, and keystores (:mod:`.tls`).
Login and password never become part of a string, so no error text can show them.

:class:`RawCursor` runs commands itself to get at the reply's bytes: PyMongo's own raw batches make a Python
object of every document.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient, errors
from pymongo.client_session import ClientSession
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import parse_uri

from airflow_cdc_provider.changes.spans import Bytes
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.mongodb.authentication import ask_provider
from airflow_cdc_provider.sources.mongodb.bson import (
    ARRAY,
    DOCUMENT,
    INT32,
    INT64,
    TIMESTAMP,
    Spans,
    as_bytes,
    find,
    read_i32,
    read_u64,
    split_array,
)
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.tls import pem_options, take_stores

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Client = TypeVar("Client")

_RAW: Final = CodecOptions(document_class=RawBSONDocument)
_APP_NAME: Final = "airflow-cdc-provider"

UNAUTHORIZED: Final = 13
"""The server's code for a missing right."""
_AUTHENTICATION: Final = (18, 8000)
LOST: Final = (136, 260, 280, 286)
"""A cursor that the log has overtaken; a token that isn't taken, isn't found; a log that begins later."""
_BAD_TOKEN: Final = 50811
_OVERSIZE: Final = 10334
_NO_SUCH_COMMAND: Final = 59
_TRIES: Final = 5
_TIMED_OUT: Final = (50, 89, 202, 262)
# The specification's list of errors after which a change stream may be resumed, and shutdown's.
_TRANSIENT: Final = frozenset(
    {
        6,
        7,
        43,
        50,
        63,
        89,
        91,
        133,
        134,
        150,
        189,
        202,
        234,
        237,
        239,
        246,
        262,
        9001,
        10107,
        11600,
        11602,
        13388,
        13435,
        13436,
    }
)


class ServerTimeout(TransientError):
    """The server, or the way to it, took longer than is allowed; less work at a time may do."""


class EventTooLarge(ConfigurationError):
    """A change event is above the server's limit of 16 MB; trying again meets the same one."""


@dataclass(frozen=True)
class ConnectionValues:
    """What a client is made of. Its text shows no secrets.

    Args:
        host: Host, hosts by comma, or a connection string.
        options: Options of :class:`pymongo.MongoClient`.
        credentials: Login and password, where the connection has them.
        stores: Keystores (see :mod:`.tls`).
        authentication: A class that gives credentials (see :mod:`.authentication`); empty for none.
    """

    host: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    stores: Mapping[str, str] = field(default_factory=dict, repr=False)
    authentication: str = ""

    @classmethod
    def read(
        cls,
        connection: Mapping[str, Any],
        connect_timeout_seconds: float,
        heartbeat_seconds: float = 10.0,
        authentication: str = "",
    ) -> ConnectionValues:
        """Read an Airflow connection's values. What a connection string says itself wins.

        Args:
            connection: The values.
            connect_timeout_seconds: How long to look for a server.
            heartbeat_seconds: How often the driver looks at all members.
            authentication: A class that gives credentials, where the string names no user; empty for none.

        Raises:
            ConfigurationError: There is no host, or ``extra`` is no JSON object or wrong.
        """
        extra = _extra(connection.get("extra"))
        stores = take_stores(extra)
        host = str(extra.pop("uri", "") or connection.get("host") or "")
        if not host:
            raise ConfigurationError(
                "the MongoDB connection has no host",
                expected="a host, hosts by comma, or a mongodb:// string",
            )
        srv = bool(extra.pop("srv", False))
        if "ssl" in extra:
            extra["tls"] = extra.pop("ssl")
        if extra.pop("allow_insecure", False):
            extra["tlsInsecure"] = True
        if not host.startswith(("mongodb://", "mongodb+srv://")):
            port = connection.get("port")
            hosts = [h if ":" in h or not port or srv else f"{h}:{port}" for h in host.split(",")]
            host = ("mongodb+srv://" if srv else "mongodb://") + ",".join(hosts)
        milliseconds = int(connect_timeout_seconds * 1000)
        options = {
            "appname": _APP_NAME,
            "serverSelectionTimeoutMS": milliseconds,
            "connectTimeoutMS": milliseconds,
            "heartbeatFrequencyMS": int(heartbeat_seconds * 1000),
            **extra,
        }
        credentials = {}
        if login := connection.get("login"):
            credentials = {"username": str(login)}
            if password := connection.get("password"):
                credentials["password"] = str(password)
            if schema := connection.get("schema"):
                options.setdefault("authSource", str(schema))
        said, names_user = _said_by(host)
        options = {name: value for name, value in options.items() if name.lower() not in said}
        if names_user:
            return cls(host, options, {}, stores)
        return cls(host, options, credentials, stores, authentication)

    def client(self, **changes: Any) -> MongoClient:
        """Make a client; it connects with its first command.

        Raises:
            ConfigurationError: An option, a keystore or the connection string is wrong, or no credentials
                are given.
        """
        return self._made(MongoClient, changes)

    def async_client(self) -> AsyncMongoClient:
        """Make a client for an event loop, likewise. It reads files: not on the loop itself."""
        return self._made(AsyncMongoClient, {})

    def _made(self, kind: Callable[..., Client], changes: Mapping[str, Any]) -> Client:
        doing = "the MongoDB connection is wrong"
        if unverified := self.unverified:
            _warn_of(unverified)
        try:
            with pem_options(self.stores) as files:
                return kind(self.host, **{**self.options, **files, **self._credentials(), **changes})
        except (errors.PyMongoError, TypeError, ValueError) as error:
            # A badly escaped connection string can put a part of its password into the error's text.
            found = type(error).__name__ if "@" in self.host else f"{type(error).__name__}: {_short(error)}"
            raise ConfigurationError(doing, found=found, remedy="change the Airflow connection") from None

    def _credentials(self) -> dict[str, Any]:
        """Return how to log in; what the connection's options say of it stays."""
        if not self.authentication:
            return dict(self.credentials)
        said = {name.lower() for name in self.options} | _said_by(self.host)[0]
        given = ask_provider(self.authentication, self.host.partition("://")[2].partition("/")[0])
        own = {name: value for name, value in given.items() if name.lower() not in said}
        return {**({} if "username" in own else self.credentials), **own}

    @property
    def unverified(self) -> str:
        """What of the server's identity isn't verified, by the option's name; empty if all is."""
        chosen = {name.lower(): value for name, value in self.options.items()}
        chosen |= {name.lower(): value for name, value in parse_qsl(self.host.partition("?")[2])}
        for name in ("tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames"):
            if chosen.get(name.lower()) in (True, "true"):
                return name
        return ""


def _said_by(host: str) -> tuple[set[str], bool]:
    """Return the options of a connection string, in small letters, and whether it names a user."""
    said = {name.lower() for name, _ in parse_qsl(host.partition("?")[2], keep_blank_values=True)}
    if "ssl" in said:
        said.add("tls")
    servers = host.partition("://")[2].partition("/")[0].partition("?")[0]
    return said, "@" in servers


@cache
def _warn_of(option: str) -> None:
    """Warn once in a process."""
    log.warning("%s is on: whoever answers at the server's address is taken for the server", option)


def _extra(value: Any) -> dict[str, Any]:
    try:
        extra = json.loads(value) if isinstance(value, str) and value else value or {}
    except json.JSONDecodeError as error:
        raise ConfigurationError("the connection's extra is no JSON") from error
    if not isinstance(extra, Mapping):
        raise ConfigurationError("the connection's extra is wrong", expected="a JSON object")
    return dict(extra)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn PyMongo's errors into ours by what the caller must do.

    Args:
        doing: What was tried, as the beginning of the message.
    """
    try:
        yield
    except errors.OperationFailure as error:
        raise _by_code(doing, error) from error
    except (errors.ConfigurationError, errors.InvalidName) as error:
        raise ConfigurationError(
            doing, found=_short(error), remedy="change the Airflow connection"
        ) from error
    except errors.PyMongoError as error:
        kind = ServerTimeout if isinstance(error, errors.NetworkTimeout) else TransientError
        raise kind(
            f"{doing}: the server doesn't answer",
            found=_short(error),
            remedy="check host, port, TLS and that the server runs, then run again",
        ) from error


def _by_code(doing: str, error: errors.OperationFailure) -> CdcError:
    found = f"error {error.code}: {_short(error)}"
    if error.code in LOST:
        return PositionLost(doing, found=found, remedy="take a new snapshot, or start from a later place")
    if error.code in _TIMED_OUT:
        return ServerTimeout(doing, found=found)
    if error.code == UNAUTHORIZED:
        return ConfigurationError(
            doing,
            expected="a user with find and changeStream on what the scope watches: role readAnyDatabase for "
            "scope deployment, role read on the database for scope database, both actions on the collection "
            "for scope collection",
            found=found,
        )
    if error.code in _AUTHENTICATION:
        return ConfigurationError(
            doing, found=found, remedy="check login, password, authSource and authMechanism"
        )
    if error.code == _OVERSIZE:
        return EventTooLarge(f"{doing}: a change event has more than 16 MB", found=found)
    if error.code == _BAD_TOKEN:
        return ConfigurationError(
            doing, found=found, remedy="the stored token isn't one of this server: set the offset"
        )
    transient = error.code in _TRANSIENT or error.has_error_label("ResumableChangeStreamError")
    kind = TransientError if transient else ConfigurationError
    return kind(doing, found=found)


def _short(error: Exception) -> str:
    """Return an error's text without the command, the reply and the topology that may follow it."""
    text = str(error)
    for follows in (", full error:", ", Topology Description:", " to execute command {"):
        text = text.partition(follows)[0]
    return text[:400].rstrip(".")


@dataclass(frozen=True)
class RawBatch:
    """One reply of a cursor.

    Args:
        data: The reply's bytes.
        documents: Where its documents stand.
        resume_token: BSON of the newest token of a change stream, else empty.
        operation_time: The server's time of the reply, None if it told none.
    """

    data: Bytes
    documents: Spans
    resume_token: bytes
    operation_time: Timestamp | None


class RawCursor:
    """A server cursor whose replies stay bytes. It lives on one server, in one session of its own.

    Args:
        client: Connected to the one server (see :func:`pinned_client`).
        database: Where the command runs.
        command: ``aggregate`` or ``find`` with all its options.
        batch_size: Documents asked for at a time.
        doing: For errors: what it reads.
        largest_batch: Up to how many documents are asked for at a time: with each reply twice as many as for
            the one before; 0: always ``batch_size``.
    """

    def __init__(
        self,
        client: MongoClient,
        database: str,
        command: Mapping[str, Any],
        batch_size: int,
        doing: str,
        *,
        largest_batch: int = 0,
    ) -> None:
        self._database = client[database]
        self._batch_size = batch_size
        self._largest_batch = max(batch_size, largest_batch)
        self._doing = doing
        self._cursor_id = 0
        self._collection = ""
        with translated(doing):
            self._session: ClientSession = client.start_session(causal_consistency=False)
            self._first: RawBatch | None = self._run(dict(command), b"firstBatch")

    @property
    def alive(self) -> bool:
        """Whether the server has more to give."""
        return self._first is not None or self._cursor_id != 0

    def next(self, wait_ms: int | None = None) -> RawBatch:
        """Return the next reply.

        Args:
            wait_ms: How long a change stream may wait for news; None for cursors that don't wait.

        Raises:
            CdcError: By what the caller must do; after it the cursor is of no use.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        command: dict[str, Any] = {"getMore": self._cursor_id, "collection": self._collection}
        command["batchSize"] = self._batch_size
        if wait_ms is not None:
            command["maxTimeMS"] = wait_ms
        with translated(self._doing):
            batch = self._run(command, b"nextBatch")
        self._batch_size = min(2 * self._batch_size, self._largest_batch)
        return batch

    def refresh(self) -> None:
        """Tell the server that the cursor's session is still in use; also from another thread.

        Raises:
            CdcError: It didn't hear it.
        """
        with translated(self._doing):
            self._database.client.admin.command("refreshSessions", [self._session.session_id])

    def close(self) -> None:
        """End the cursor on the server; failures to do so don't matter, it ends by itself."""
        if self._cursor_id:
            command = {"killCursors": self._collection, "cursors": [self._cursor_id]}
            self._cursor_id = 0
            try:
                self._database.command(command, session=self._session)
            except errors.PyMongoError:
                return
        self._session.end_session()

    def _run(self, command: Mapping[str, Any], batch_name: bytes) -> RawBatch:
        reply = self._database.command(
            dict(command),
            codec_options=_RAW,
            session=self._session,
            read_preference=self._database.read_preference,
        )
        raw = reply.raw
        data = as_bytes(raw)
        kind, start, end = _member(data, 0, len(data), b"cursor")
        if kind != DOCUMENT:
            raise ConfigurationError(self._doing, expected="a reply with a cursor")
        self._cursor_id = _integer(data, start, end, b"id")
        namespace = _text(data, start, end, b"ns")
        self._collection = namespace.partition(".")[2]
        kind, array_start, array_end = _member(data, start, end, batch_name)
        documents = split_array(data, array_start, array_end) if kind == ARRAY else split_array(data, 0, 0)
        token_kind, token_start, token_end = _member(data, start, end, b"postBatchResumeToken")
        token = raw[token_start:token_end] if token_kind == DOCUMENT else b""
        kind, time_start, _ = _member(data, 0, len(data), b"operationTime")
        moment = as_timestamp(int(read_u64(data, time_start))) if kind == TIMESTAMP else None
        return RawBatch(data, documents, bytes(token), moment)


def as_timestamp(value: int) -> Timestamp:
    """Make a timestamp of its 64 bits, seconds in the upper half."""
    return Timestamp(value >> 32, value & 0xFFFF_FFFF)


def _member(data: Bytes, start: int, end: int, name: bytes) -> tuple[int, int, int]:
    kind, first, after = find(data, start, end, np.frombuffer(name, np.uint8))
    return int(kind), int(first), int(after)


def _integer(data: Bytes, start: int, end: int, name: bytes) -> int:
    kind, first, _ = _member(data, start, end, name)
    if kind == INT64:
        return int(np.int64(read_u64(data, first)))
    return int(read_i32(data, first)) if kind == INT32 else 0


def _text(data: Bytes, start: int, end: int, name: bytes) -> str:
    kind, first, after = _member(data, start, end, name)
    return data[first + 4 : after - 1].tobytes().decode() if kind == 0x02 else ""


def pinned_client(values: ConnectionValues) -> MongoClient:
    """Make a client whose commands all go to one server, as a cursor of several commands needs it.

    Commands to a primary do so anyway. Otherwise one of the servers that the read preference allows is chosen
    now.

    Raises:
        CdcError: No server can be used.
    """
    client = values.client()
    with translated("no MongoDB server can be used"):
        preference = client.read_preference
        hello = _hello(client)
        sharded = hello.get("msg") == "isdbgrid"
        if not sharded and preference == ReadPreference.PRIMARY:
            return client
        address = _any_node(client) if sharded else hello.get("me")
        parsed = parse_uri(values.host, validate=False)
    client.close()
    options = {**parsed["options"], **values.options}
    credentials = {name: parsed[name] for name in ("username", "password") if parsed[name]} | dict(
        values.credentials
    )
    for name in list(options):
        if name.lower() in ("replicaset", "directconnection"):
            del options[name]
    one = replace(values, host=f"mongodb://{address}", options=options, credentials=credentials)
    return one.client(directConnection=True)


def _any_node(client: MongoClient) -> str:
    host, port = sorted(client.nodes)[0]
    return f"{host}:{port}"


def pauses(advanced: MongodbAdvanced) -> Iterator[float]:
    """Give the pauses in seconds after failed attempts to reach a server; one more follows the last pause."""
    pause = advanced.connect_pause_seconds
    for _ in range(advanced.connect_attempts):
        yield min(pause, advanced.connect_longest_pause_seconds)
        pause *= 2


def reach(
    client: MongoClient, advanced: MongodbAdvanced, sleep: Callable[[float], None] = time.sleep
) -> Timestamp:
    """Return the cluster time as soon as a server tells it; pauses between attempts grow.

    Args:
        client: The client.
        advanced: How often to try, and how long to pause.
        sleep: Pauses for some seconds.

    Raises:
        TransientError: None did.
        ConfigurationError: One refuses.
    """
    left = pauses(advanced)
    while True:
        try:
            return cluster_time(client)
        except TransientError as error:
            pause = next(left, None)
            if pause is None:
                raise
            log.warning("tried again in %.1f s: %s", pause, error)
            sleep(pause)


def await_server(client: MongoClient) -> None:
    """Wait for a usable server as long as the client does by itself; ``pymongo.timeout`` takes its place.

    Raises:
        pymongo.errors.PyMongoError: There is none.
    """
    client.is_primary  # noqa: B018  # asking selects a server


def over_elections(ask: Callable[[], Answer]) -> Answer:
    """Ask a server again that hung up or is no primary any more; the client then waits for the next one.

    Raises:
        TransientError: There is no server in the time that the client waits for one, or they all hang up.
    """
    for _ in range(1, _TRIES):
        try:
            return ask()
        except TransientError as error:
            if isinstance(error.__cause__, errors.ServerSelectionTimeoutError):
                raise  # this one has waited already
            log.info("asked again: %s", error)
    return ask()


def _hello(client: MongoClient) -> Mapping[str, Any]:
    """Ask a server what it is, which needs no right. Before 4.4.2 the command has another name."""
    try:
        return client.admin.command("hello", read_preference=client.read_preference)
    except errors.OperationFailure as error:
        if error.code != _NO_SUCH_COMMAND:
            raise
    return client.admin.command("isMaster", read_preference=client.read_preference)


def cluster_time(client: MongoClient, doing: str = "the cluster's time can't be read") -> Timestamp:
    """Return the time of the newest operation that the server knows.

    Raises:
        ConfigurationError: The server is no member of a replica set.
    """

    def ask() -> Any:
        with translated(doing):
            return _hello(client).get("operationTime")

    now = over_elections(ask)
    if not isinstance(now, Timestamp):
        raise ConfigurationError(
            "the MongoDB server tells no cluster time",
            expected="a replica set or a sharded cluster",
            found="a standalone server, which keeps no oplog",
            remedy="restart it with --replSet and run rs.initiate(): one member is enough",
        )
    return now
