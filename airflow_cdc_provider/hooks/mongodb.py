"""Hook of MongoDB deployments: takes our connection type ``cdc_mongodb`` and the stock ``mongo``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from airflow_cdc_provider.hooks.source import CdcHook

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient

_OPTIONS: Final = {
    "replica_set": "replicaSet",
    "auth_source": "authSource",
    "auth_mechanism": "authMechanism",
    "tls": "tls",
    "tls_ca_file": "tlsCAFile",
    "tls_certificate_key_file": "tlsCertificateKeyFile",
    "tls_certificate_key_file_password": "tlsCertificateKeyFilePassword",
    "tls_allow_invalid_hostnames": "tlsAllowInvalidHostnames",
    "direct_connection": "directConnection",
}
_STOCK: Final = {"ssl": "tls", "ssl_ca_certs": "tls_ca_file", "ssl_certfile": "tls_certificate_key_file"}


class MongodbCdcHook(CdcHook):
    """A MongoDB deployment.

    Args:
        mongo_conn_id: The connection: host (several with commas, each with its port if it needs one), port,
            login and password; as extra ``srv``, ``replica_set``, ``auth_source``, ``auth_mechanism``,
            ``tls``, ``tls_ca_file``, ``tls_certificate_key_file`` and ``uri_options`` (the query part of a
            connection string, for everything else).

    Example::

        with MongodbCdcHook("mongo_shop") as client:
            client.admin.command("ping")
    """

    conn_name_attr = "mongo_conn_id"
    default_conn_name = "cdc_mongodb_default"
    conn_type = "cdc_mongodb"
    hook_name = "MongoDB (CDC)"
    accepted_types = ("cdc_mongodb", "mongo")
    default_port = 27017

    def __init__(self, mongo_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.mongo_conn_id = mongo_conn_id

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.mongo_conn_id

    def get_conn(self) -> MongoClient:
        """Return a client, the same one until :meth:`close`."""
        return self._client

    def close(self) -> None:
        """End the client and its threads."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    def __enter__(self) -> MongoClient:
        return self.get_conn()

    def __exit__(self, *_: object) -> None:
        self.close()

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Read the stock type's extra too: ``ssl`` and plain driver options such as ``replicaSet``."""
        extra: dict[str, Any] = {}
        others: list[str] = []
        ours = {driver: name for name, driver in _OPTIONS.items()}
        for name, value in values["extra"].items():
            known = ours.get(name, _STOCK.get(name, name))
            if known in _OPTIONS or known in ("srv", "uri_options"):
                extra[known] = value
            elif name not in ("allow_insecure",):
                others.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        if others:
            extra["uri_options"] = "&".join(filter(None, [extra.get("uri_options", ""), *others]))
        return {**values, "extra": extra}

    def describe_server(self) -> str:
        """Name the release and the kind of deployment."""
        try:
            client = self.get_conn()
            release = client.server_info()["version"]
            hello = client.admin.command("hello")
        finally:
            self.close()
        if hello.get("msg") == "isdbgrid":
            kind = "sharded cluster"
        elif hello.get("setName"):
            kind = f"replica set {hello['setName']}"
        else:
            kind = "standalone server: change streams need a replica set"
        return f"MongoDB {release}, {kind}"

    @cached_property
    def _client(self) -> MongoClient:
        from pymongo import MongoClient

        return MongoClient(**client_options(self.connection_values()))


def async_client(values: dict[str, Any]) -> AsyncMongoClient:
    """Build the client that triggers use.

    Args:
        values: What :meth:`MongodbCdcHook.connection_values` returned.
    """
    from pymongo import AsyncMongoClient

    return AsyncMongoClient(**client_options(values))


def client_options(values: dict[str, Any], *, timeout_seconds: float = 5.0) -> dict[str, Any]:
    """Translate a connection's values into the driver's options; a password never becomes part of a URI.

    Args:
        values: What :meth:`MongodbCdcHook.connection_values` returned.
        timeout_seconds: How long to look for a usable server.
    """
    extra = values["extra"]
    hosts = [host.strip() for host in values["host"].split(",") if host.strip()] or ["127.0.0.1"]
    query = dict(parse_qsl(str(extra.get("uri_options", "")), keep_blank_values=True))
    if extra.get("srv"):
        host: Any = f"mongodb+srv://{hosts[0]}/"
    else:
        port = int(values["port"])
        host = [entry if ":" in entry.rsplit("]", 1)[-1] else f"{entry}:{port}" for entry in hosts]
    options: dict[str, Any] = {
        "host": host,
        "serverSelectionTimeoutMS": int(timeout_seconds * 1000),
        "connectTimeoutMS": int(timeout_seconds * 1000),
        "appname": "airflow-cdc-provider",
        **{_OPTIONS[name]: extra[name] for name in _OPTIONS if name in extra},
        **{name: _plain(value) for name, value in query.items()},
    }
    if values["login"]:
        options["username"] = values["login"]
        options["password"] = values["password"] or None
        options.setdefault("authSource", values["schema"] or "admin")
    return options


def _plain(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdigit() else value
