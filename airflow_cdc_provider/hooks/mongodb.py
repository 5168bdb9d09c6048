"""Hook of MongoDB deployments; accepts our connection type ``cdc_mongodb`` and the stock ``mongo``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from airflow_cdc_provider.hooks.source import CdcHook
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.plugin import options_of

if TYPE_CHECKING:
    from pymongo import MongoClient

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues

_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_VALIDATION_TIMEOUT_SECONDS: Final = 60.0


class MongodbCdcHook(CdcHook):
    """A MongoDB deployment.

    Args:
        mongo_conn_id: The connection: host (several with commas, each with its port if it needs one), port,
            login and password; as extra ``srv``, ``replicaSet``, ``authSource``, ``authMechanism``, ``tls``,
            ``tlsCAFile``, ``tlsCertificateKeyFile``, ``ssl.keystore`` and ``ssl.truststore`` (with
            ``.password`` and ``.type``), ``secret_uri`` (a connection string instead of the host), and
            ``uri_options`` (the query part of a connection string, for everything else).

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
        self.authentication_class = ""

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.mongo_conn_id

    def configure(self, connector: Connector) -> None:
        """Use the declared class that provides credentials.

        A connection can't name one: whoever may edit connections could run code.
        """
        self.authentication_class = options_of(connector, MongodbOptions).authentication_class

    def get_conn(self) -> MongoClient:
        """Return a client, the same one until :meth:`close`."""
        return self._client

    def close(self) -> None:
        """Close the client and its threads."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    def __enter__(self) -> MongoClient:
        return self.get_conn()

    def __exit__(self, *_: object) -> None:
        self.close()

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Expand ``uri_options`` into the extra, where the source reads each option by its name."""
        extra = dict(values["extra"])
        others = parse_qsl(str(extra.pop("uri_options", "")), keep_blank_values=True)
        return {**values, "extra": {**{name: _plain(value) for name, value in others}, **extra}}

    def _machine_identity(self, values: dict[str, Any]) -> str:
        """Return the authentication mechanism."""
        return self._read(values).machine_identity

    def describe_server(self) -> str:
        """Return the release and the kind of deployment."""
        from pymongo import timeout

        from airflow_cdc_provider.sources.mongodb.connection import await_server

        try:
            client = self.get_conn()
            await_server(client)
            with timeout(_VALIDATION_TIMEOUT_SECONDS):
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
        return self._read(self.connection_values()).client()

    def _read(self, values: dict[str, Any]) -> ConnectionValues:
        from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues

        return ConnectionValues.read(
            values, _CONNECT_TIMEOUT_SECONDS, authentication=self.authentication_class
        )


def _plain(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdigit() else value
