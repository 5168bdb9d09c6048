"""Clients from an Airflow connection's values, and commands that verify that the server responds.

An Airflow connection of type ``mongo`` or ``cdc_mongodb`` has host (one, several separated by commas, or a
``mongodb://`` string), port, login, password, schema (the authentication database), and in ``extra`` any
option of a MongoDB connection string by its name, plus ``srv`` and ``ssl`` as in Airflow's own hook,
keystores (:mod:`.driver.tls`), and ``secret_uri``, a connection string instead of the host, which Airflow
masks.
Login and password are never put into a connection string, so no error text can show them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient, errors
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import parse_uri

from airflow_cdc_provider.connection_settings import check_files, flag
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.mongodb.authentication import provider_credentials
from airflow_cdc_provider.sources.mongodb.driver.connection_options import (
    FILES,
    checked,
    require_absent,
    uri_options,
    with_tls,
)
from airflow_cdc_provider.sources.mongodb.driver.server_errors import short_text, translated
from airflow_cdc_provider.sources.mongodb.driver.tls import pem_options, take_stores
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced

log = logger(__name__)

Answer = TypeVar("Answer")
Client = TypeVar("Client")

_APP_NAME: Final = "airflow-cdc-provider"

_SERVER: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\])(:\d{1,5})?")
_OF_MANY_SERVERS: Final = ("replicaset", "directconnection", "srvmaxhosts", "srvservicename")
"""Options that are invalid with the address of one server."""
_NO_SUCH_COMMAND: Final = 59
_TRIES: Final = 5


@dataclass(frozen=True)
class ConnectionValues:
    """The parameters of a client. Its ``repr`` contains no secrets.

    Args:
        host: Host, comma-separated hosts, or a connection string.
        options: Options of :class:`pymongo.MongoClient`.
        credentials: Login and password, if the connection has them.
        stores: Keystores (see :mod:`.driver.tls`).
        authentication: A class that provides credentials (see :mod:`.authentication`); empty for none.
    """

    host: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    stores: Mapping[str, str] = field(default_factory=dict, repr=False)
    authentication: str = ""

    def __post_init__(self) -> None:
        """Refuse options that a connection may not have; PyMongo validates the values of a string."""
        checked(self.options, "extra")
        checked(dict.fromkeys(uri_options(self.host), True), "connection string")

    @classmethod
    def read(
        cls,
        connection: Mapping[str, Any],
        connect_timeout_seconds: float,
        heartbeat_seconds: float = 10.0,
        authentication: str = "",
    ) -> ConnectionValues:
        """Read an Airflow connection's values. Options in a connection string take precedence.

        Args:
            connection: The values.
            connect_timeout_seconds: Server selection and connect timeout; 0 for no limit to connect, and the
                driver's default to select.
            heartbeat_seconds: Monitoring interval of the driver.
            authentication: A class that provides credentials if the connection string names no user; empty
                for none.

        Raises:
            ConfigurationError: The host is missing, or ``extra`` is not a valid JSON object.
        """
        extra = _extra(connection.get("extra"))
        stores = take_stores(extra)
        host = str(extra.pop("secret_uri", "") or connection.get("host") or "")
        if not host:
            raise ConfigurationError(
                "the MongoDB connection has no host",
                expected="a host, comma-separated hosts, or a mongodb:// string",
            )
        srv = flag(extra, "srv")
        if not host.startswith(("mongodb://", "mongodb+srv://")):
            port = connection.get("port")
            hosts = [h if ":" in h or not port or srv else f"{h}:{port}" for h in host.split(",")]
            host = ("mongodb+srv://" if srv else "mongodb://") + ",".join(hosts)
        if srv and host.startswith("mongodb://"):
            raise ConfigurationError(
                "the MongoDB connection has srv, but its connection string names servers",
                expected="mongodb+srv://..., or no srv",
            )
        own = {name: value for name, value in extra.items() if name not in ("srv", "allow_insecure")}
        if flag(extra, "allow_insecure"):
            require_absent(own, "tlsInsecure", "allow_insecure")
            own["tlsInsecure"] = True
        of_uri = uri_options(host)
        extra = with_tls(checked(own, "extra"), of_uri, stores, srv=host.startswith("mongodb+srv://"))
        milliseconds = int(connect_timeout_seconds * 1000)
        options = {
            "appname": _APP_NAME,
            **({"serverSelectionTimeoutMS": milliseconds} if milliseconds else {}),
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
        explicit, names_user = _explicit_options(host)
        options = {name: value for name, value in options.items() if name.lower() not in explicit}
        if names_user:
            return cls(host, options, {}, stores)
        return cls(host, options, credentials, stores, authentication)

    def client(self, **changes: Any) -> MongoClient:
        """Create a client; it connects with its first command.

        Raises:
            ConfigurationError: An option, a keystore or the connection string is invalid, or the
                authentication class returns no credentials.
        """
        return self._create(MongoClient, changes)

    def async_client(self) -> AsyncMongoClient:
        """Create an asynchronous client. It reads files, so call this outside of the event loop.

        Raises:
            ConfigurationError: As of :meth:`client`.
        """
        return self._create(AsyncMongoClient, {})

    def _create(self, kind: Callable[..., Client], changes: Mapping[str, Any]) -> Client:
        message = "the MongoDB connection is invalid"
        if unverified := self.unverified:
            _warn_of(unverified)
        try:
            check_files(self._chosen, *FILES)
            with pem_options(self.stores) as files:
                return kind(self.host, **{**self.options, **files, **self._credentials(), **changes})
        except OSError as error:  # a missing file, or an SSLError of its content
            raise ConfigurationError(
                "the TLS files of the MongoDB connection can't be used",
                expected="PEM files readable on this machine (executors, too)",
                found=str(error),
                remedy="correct tlsCAFile or tlsCertificateKeyFile in the extra of the Airflow connection",
            ) from None
        except (errors.PyMongoError, TypeError, ValueError) as error:
            # A badly escaped connection string can leak a part of its password into the error's text.
            name = type(error).__name__
            found = name if "@" in self.host else f"{name}: {short_text(error)}"
            raise ConfigurationError(message, found=found, remedy="change the Airflow connection") from None

    def _credentials(self) -> dict[str, Any]:
        """Return the login options, without those that the connection's options set."""
        if not self.authentication:
            return dict(self.credentials)
        explicit = {name.lower() for name in self.options} | _explicit_options(self.host)[0]
        provided = provider_credentials(self.authentication, self.host.partition("://")[2].partition("/")[0])
        own = {name: value for name, value in provided.items() if name.lower() not in explicit}
        return {**({} if "username" in own else self.credentials), **own}

    @property
    def servers(self) -> list[str]:
        """The servers that the connection names."""
        return self.host.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")

    @property
    def has_login(self) -> bool:
        """Whether there is a login: of the connection, of its string, or of a class."""
        return bool(self.credentials or self.authentication or _explicit_options(self.host)[1])

    @property
    def unverified(self) -> str:
        """The option that disables verification of the server's identity; empty if none does."""
        names = ("tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames")
        return next((name for name in names if self._chosen.get(name.lower()) is True), "")

    @property
    def machine_identity(self) -> str:
        """The mechanism by which servers get tokens of this machine's identity; empty if none does."""
        mechanism = str(self._chosen.get("authmechanism", "")).upper()
        own = mechanism == "MONGODB-OIDC" or (mechanism == "MONGODB-AWS" and not self.has_login)
        return f"authMechanism {mechanism}" if own else ""

    @property
    def _chosen(self) -> dict[str, Any]:
        """Options by their names in lower case."""
        return {name.lower(): value for name, value in self.options.items()} | uri_options(self.host)


def encrypted(client: MongoClient) -> bool:
    """Return whether a client uses TLS."""
    return client.options.pool_options._ssl_context is not None


def _explicit_options(host: str) -> tuple[set[str], bool]:
    """Return the options of a connection string, in lower case, and whether it names a user."""
    servers = host.partition("://")[2].partition("/")[0].partition("?")[0]
    return set(uri_options(host)), "@" in servers


@cache
def _warn_of(option: str) -> None:
    """Warn once per process."""
    log.warning("%s is on: the server's identity is not verified", option)


def _extra(value: Any) -> dict[str, Any]:
    try:
        extra = json.loads(value) if isinstance(value, str) and value else value or {}
    except json.JSONDecodeError as error:
        raise ConfigurationError("the connection's extra is not valid JSON") from error
    if not isinstance(extra, Mapping):
        raise ConfigurationError("invalid value for the connection's extra", expected="a JSON object")
    return dict(extra)


def pinned_client(values: ConnectionValues) -> MongoClient:
    """Create a client that sends all commands to one server, as a cursor with several commands requires.

    With read preference ``primary`` an ordinary client does so. Otherwise one of the servers that the read
    preference allows is selected now.

    Raises:
        CdcError: No server is usable.
    """
    client = values.client()
    with translated("no usable MongoDB server"):
        preference = client.read_preference
        hello = _hello(client)
        sharded = hello.get("msg") == "isdbgrid"
        if not sharded and preference == ReadPreference.PRIMARY:
            return client
        address = _any_node(client) if sharded else hello.get("me")
        parsed = parse_uri(values.host, validate=False)
    client.close()
    if not (isinstance(address, str) and _SERVER.fullmatch(address)):  # else it could have options
        raise ConfigurationError(
            "a MongoDB server has an invalid address",
            expected="host:port, as a member of a replica set reports itself",
            found=repr(address)[:80],
            remedy="correct the members of the replica set (rs.conf()), and the Airflow connection",
        )
    options = {
        name.lower(): value
        for name, value in (*parsed["options"].items(), *values.options.items())
        if name.lower() not in _OF_MANY_SERVERS
    }
    if "tlsinsecure" in options:  # the parser has added what it means, which the driver refuses with it
        options = {
            k: v for k, v in options.items() if not k.startswith(("tlsallowinvalid", "tlsdisableocsp"))
        }
    credentials = {name: parsed[name] for name in ("username", "password") if parsed[name]} | dict(
        values.credentials
    )
    database = quote_plus(parsed["database"] or "")  # where the login is, unless authSource is set
    one = replace(values, host=f"mongodb://{address}/{database}", options=options, credentials=credentials)
    return one.client(directConnection=True)


def _any_node(client: MongoClient) -> str:
    host, port = sorted(client.nodes)[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def await_cluster_time(
    client: MongoClient, advanced: MongodbAdvanced, sleep: Callable[[float], None] = time.sleep
) -> Timestamp:
    """Return the cluster time once a server responds, with a growing pause between attempts.

    Args:
        client: The client.
        advanced: Number of attempts and pauses.
        sleep: Sleeps for some seconds.

    Raises:
        TransientError: No server responded.
        ConfigurationError: A server refused the command.
    """
    retry_pauses = pauses(advanced)
    while True:
        try:
            return cluster_time(client)
        except TransientError as error:
            pause = next(retry_pauses, None)
            if pause is None:
                raise
            log.warning("retrying in %.1f s: %s", pause, error)
            sleep(pause)


def await_server(client: MongoClient) -> None:
    """Wait for a usable server up to the client's own timeout, or that of ``pymongo.timeout``.

    Raises:
        pymongo.errors.PyMongoError: No server is usable.
    """
    client.is_primary  # noqa: B018  # the attribute access selects a server


def retry_over_elections(operation: Callable[[], Answer]) -> Answer:
    """Retry an operation whose server disconnected or stepped down; the client then selects the next primary.

    Raises:
        TransientError: Server selection timed out, or each attempt failed.
    """
    for _ in range(1, _TRIES):
        try:
            return operation()
        except TransientError as error:
            if isinstance(error.__cause__, errors.ServerSelectionTimeoutError):
                raise  # server selection has waited already
            log.info("retrying: %s", error)
    return operation()


def _hello(client: MongoClient) -> Mapping[str, Any]:
    """Run ``hello``, which needs no privileges. Before 4.4.2 the command has another name."""
    try:
        return client.admin.command("hello", read_preference=client.read_preference)
    except errors.OperationFailure as error:
        if error.code != _NO_SUCH_COMMAND:
            raise
    return client.admin.command("isMaster", read_preference=client.read_preference)


def cluster_time(client: MongoClient, message: str = "the cluster time can't be read") -> Timestamp:
    """Return the time of the newest operation of the server.

    Args:
        client: The client.
        message: Message of the error if the command fails.

    Raises:
        ConfigurationError: The server is not a member of a replica set.
        TransientError: The server doesn't respond.
    """

    def read() -> Any:
        with translated(message):
            return _hello(client).get("operationTime")

    now = retry_over_elections(read)
    if not isinstance(now, Timestamp):
        raise ConfigurationError(
            "the MongoDB server reports no cluster time",
            expected="a replica set or a sharded cluster",
            found="a standalone server, which has no oplog",
            remedy="restart it with --replSet and run rs.initiate(): one member is enough",
        )
    return now
