"""Connections: a client from an Airflow connection's values, and the questions that tell whether it answers.

A connection is what Airflow's ``mongo`` and ``cdc_mongodb`` types hold: host (one, several by comma, or a
whole ``mongodb://`` string), port, login, password, schema (the database that keeps the user), and in
``extra`` any option of a MongoDB connection string by its name, besides ``srv`` and ``ssl`` as Airflow's own
hook has them, and keystores (:mod:`.tls`).
Login and password never become part of a string, so no error text can show them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient, errors
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import parse_uri

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.mongodb.authentication import ask_provider
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.server_errors import short_text, translated
from airflow_cdc_provider.sources.mongodb.tls import pem_options, take_stores
from airflow_cdc_provider.sources.pauses import pauses

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Client = TypeVar("Client")

_APP_NAME: Final = "airflow-cdc-provider"

_NO_SUCH_COMMAND: Final = 59
_TRIES: Final = 5


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
            name = type(error).__name__
            found = name if "@" in self.host else f"{name}: {short_text(error)}"
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
