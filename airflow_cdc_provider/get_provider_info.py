"""Provider information that Airflow reads at each start: connection types, links, configuration, commands."""

from __future__ import annotations

from typing import Any

_PACKAGE = "airflow_cdc_provider"
_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_SECRET: dict[str, Any] = {"type": ["string", "null"], "format": "password"}
_FLAG: dict[str, Any] = {"type": ["boolean", "null"], "default": None}
"""Without a default: false disables what other settings, or a list of servers, enable."""


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description as plain data."""
    return {
        "package-name": "airflow-cdc-provider",
        "name": "Change data capture",
        "description": (
            "Change data capture from Cassandra, ScyllaDB, MongoDB and Vitess to lakehouse tables and Kafka, "
            "run on Spark."
        ),
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://pypi.org/project/airflow-cdc-provider/",
                "tags": ["software"],
            }
        ],
        "hooks": [
            _modules("hooks.cassandra", "hooks.debezium", "hooks.mongodb", "hooks.scylla", "hooks.vitess")
        ],
        "operators": [
            _modules(
                "operators.stages",
                "operators.cassandra",
                "operators.check",
                "operators.health",
                "operators.rebootstrap",
                "operators.signal",
                "operators.stream",
                "operators.topics",
                "operators.transfer",
            )
        ],
        "sensors": [
            _modules(
                "sensors.cassandra",
                "sensors.mongodb",
                "sensors.scylla",
                "sensors.snapshots",
                "sensors.stream",
                "sensors.topics",
                "sensors.vitess",
            )
        ],
        "triggers": [
            _modules(
                "triggers.cassandra",
                "triggers.mongodb",
                "triggers.scylla",
                "triggers.snapshots",
                "triggers.stream",
                "triggers.topics",
                "triggers.vitess",
            )
        ],
        "connection-types": [_CASSANDRA, _MONGODB, _SCYLLA, _VITESS],
        "extra-links": [f"{_PACKAGE}.links.connector.ConnectorAssetsLink"],
        "asset-uris": [
            {"schemes": ["cassandra"], "handler": f"{_PACKAGE}.assets.sanitize_table_uri"},
            {"schemes": ["cdc"], "handler": f"{_PACKAGE}.assets.sanitize_cdc_uri"},
        ],
        "cli": [f"{_PACKAGE}.cli.definition.get_cdc_cli_commands"],
        "config": {"cdc": {"description": "Options of the CDC provider.", "options": _OPTIONS}},
    }


_INTEGRATION = "Change data capture"


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _field(label: str, description: str = "", schema: dict[str, Any] = _TEXT) -> dict[str, Any]:
    return {"label": label, **({"description": description} if description else {}), "schema": schema}


def _connection_type(
    name: str, hook: str, labels: dict[str, str], placeholders: dict[str, str], fields: dict[str, Any]
) -> dict[str, Any]:
    return {
        "connection-type": f"cdc_{hook.lower()}",
        "hook-class-name": f"{_PACKAGE}.hooks.{hook.lower()}.{hook}CdcHook",
        "hook-name": f"{name} (CDC)",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "extra"],
            "relabeling": labels,
            "placeholders": placeholders,
        },
        "conn-fields": fields,
    }


_CQL_FIELDS = {
    "local_datacenter": _field("Local datacenter", "Only nodes of this datacenter are contacted."),
    "driver_config_file": _field(
        "Driver settings file", "application.conf of the Java driver (cassandra.driver.config.file)."
    ),
    "tls": _field("TLS", "Encrypt connections.", _FLAG),
    "tls_ca_file": _field(
        "TLS CA file", "PEM file of the CA of the nodes' certificates; empty: the system's CAs."
    ),
    "tls_certificate_file": _field(
        "TLS certificate file", "PEM file with the client's certificate, if nodes require one."
    ),
    "tls_key_file": _field("TLS key file", "PEM file with the key of that certificate."),
    "tls_key_password": _field("TLS key password", schema=_SECRET),
    "tls_config_file": _field(
        "TLS settings file", "Properties file of Debezium (cassandra.ssl.config.path): keystores, suites."
    ),
    "trustStore.location": _field(
        "TLS trust store", "Java keystore with the nodes' certificates or their CA's: JKS or PKCS12."
    ),
    "trustStore.password": _field("TLS trust store password", schema=_SECRET),
    "keyStore.location": _field(
        "TLS key store", "Java keystore with the client's key and certificate, if nodes require one."
    ),
    "keyStore.password": _field("TLS key store password", schema=_SECRET),
    "cipherSuites": _field(
        "TLS cipher suites", "Comma-separated, in Java's or OpenSSL's names; empty for all."
    ),
    "tls_check_hostname": _field(
        "TLS host name check",
        "Compare the certificate's names with the contact point; empty for true.",
        _FLAG,
    ),
}
"""Of connections to clusters that speak CQL."""

_CASSANDRA = _connection_type(
    "Cassandra",
    "Cassandra",
    {"host": "Contact points"},
    {"host": "10.0.0.1, 10.0.0.2", "port": "9042"},
    {
        **_CQL_FIELDS,
        "keystore_password": _field(
            "Commit log keystore password",
            "Password of the encrypted commit logs' keystore (source.encryption.keystore).",
            _SECRET,
        ),
        "key_password": _field(
            "Commit log key password", "Password of its keys; empty for the keystore's password.", _SECRET
        ),
    },
)

_SCYLLA = _connection_type(
    "ScyllaDB",
    "Scylla",
    {"host": "Contact points"},
    {"host": "10.0.0.1, 10.0.0.2", "port": "9042"},
    _CQL_FIELDS,
)

_MONGODB = _connection_type(
    "MongoDB",
    "Mongodb",
    {"host": "Hosts"},
    {"host": "db1:27017, db2:27017, db3:27017", "port": "27017"},
    {
        "replicaSet": _field("Replica set", "Its name."),
        "authSource": _field("Authentication database", "Database of the user; empty for admin."),
        "authMechanism": _field(
            "Authentication mechanism",
            "Empty to negotiate with the server; MONGODB-X509 for login by certificate.",
        ),
        "secret_uri": _field("Connection string", "Instead of hosts, if it has a login.", _SECRET),
        "srv": _field("DNS seed list", "The host's SRV records list the servers (mongodb+srv).", _FLAG),
        "tls": _field("TLS", "Encrypt connections.", _FLAG),
        "tlsCAFile": _field("TLS CA file", "PEM file of the CA of the servers' certificates."),
        "tlsCertificateKeyFile": _field("TLS certificate and key file", "The client's, in PEM format."),
        "tlsCertificateKeyFilePassword": _field("TLS key password", schema=_SECRET),
        "uri_options": _field(
            "Other options", "As in a connection string: readPreference=secondary&maxPoolSize=20"
        ),
    },
)

_VITESS = _connection_type(
    "Vitess",
    "Vitess",
    {"host": "VTGates", "port": "gRPC port"},
    {"host": "vtgate1, vtgate2:15991", "port": "15991"},
    {
        "tls": _field("TLS", "Encrypt connections.", _FLAG),
        "tls_ca_file": _field("TLS CA file", "PEM file of the CA of VTGate's certificate."),
        "tls_cert_file": _field(
            "TLS certificate file", "PEM file with the client's certificate, if VTGate requires one."
        ),
        "tls_key_file": _field("TLS key file", "PEM file with the key of that certificate."),
        "tls_server_name": _field("TLS server name", "Name in VTGate's certificate, if it isn't the host's."),
        "headers": _field("Headers", "Sent with each call, for proxies: name:value,name:value"),
        "keepalive_seconds": _field(
            "Keepalive interval", "Seconds between pings of an idle connection; empty for none."
        ),
        "max_message_bytes": _field("Largest message", "In bytes; empty for 17 MiB. Each row must fit."),
        "load_balancing": _field(
            "Load balancing", "With several VTGates: pick_first (also if empty) or round_robin."
        ),
        "caller_id": _field("Caller id", "Principal for VTGate's logs and access lists."),
        "vtctld_host": _field(
            "vtctld", "Host of a vtctld that returns the first position; empty: VTGate returns it."
        ),
        "vtctld_port": _field("vtctld's port", "Its gRPC port; empty for 15999."),
        "vtctld_login": _field("vtctld's login", "Login, if vtctld requires one."),
        "vtctld_password": _field("vtctld's password", "Password of that login.", _SECRET),
    },
)

_OPTIONS = {
    "work_folder": {
        "description": (
            "Folder where operators and Spark applications exchange job specs, results and the state of "
            "continuous applications. Airflow's workers, its triggerer and Spark's driver must share it. "
            "Empty: $AIRFLOW_HOME/cdc."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "/mnt/shared/cdc",
        "default": "",
    },
    "spark_jars": {
        "description": "Comma-separated jars for each Spark application: the table format's runtime.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/opt/cdc/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
        "default": "",
    },
    "workload_identity_tokens": {
        "description": (
            "Whether connections may take tokens of the machine's identity, or sign some with a key file of "
            "the machine: MONGODB-OIDC, MONGODB-AWS without a login, Kafka's metadata authentication and "
            "assertion key files, OAUTHBEARER_AZURE_IMDS of registries. Then editors of connections can "
            "send such tokens, for audiences of their choice, to servers of their choice."
        ),
        "version_added": "0.1.0",
        "type": "boolean",
        "example": "True",
        "default": "False",
    },
}
