"""Provider information that Airflow reads at each start: connection types, links, configuration, commands."""

from __future__ import annotations

from typing import Any

_PACKAGE = "airflow_cdc_provider"
_TEXT = {"type": ["string", "null"]}
_SECRET = {"type": ["string", "null"], "format": "password"}
_FLAG = {"type": ["boolean", "null"], "default": False}


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


_CQL_FIELDS = {
    "local_datacenter": {
        "label": "Local datacenter",
        "description": "Only nodes of this datacenter are contacted.",
        "schema": _TEXT,
    },
    "driver_config_file": {
        "label": "Driver settings file",
        "description": "application.conf of the Java driver (cassandra.driver.config.file).",
        "schema": _TEXT,
    },
    "tls": {"label": "TLS", "description": "Encrypt connections.", "schema": _FLAG},
    "tls_ca_file": {
        "label": "TLS CA file",
        "description": "PEM file of the CA of the nodes' certificates; empty: the system's CAs.",
        "schema": _TEXT,
    },
    "tls_certificate_file": {
        "label": "TLS certificate file",
        "description": "PEM file with the client's certificate, if nodes require one.",
        "schema": _TEXT,
    },
    "tls_key_file": {
        "label": "TLS key file",
        "description": "PEM file with the key of that certificate.",
        "schema": _TEXT,
    },
    "tls_key_password": {
        "label": "TLS key password",
        "schema": _SECRET,
    },
    "tls_config_file": {
        "label": "TLS settings file",
        "description": "Properties file of Debezium (cassandra.ssl.config.path): keystores, suites.",
        "schema": _TEXT,
    },
    "trustStore.location": {
        "label": "TLS trust store",
        "description": "Java keystore with the nodes' certificates or their CA's: JKS or PKCS12.",
        "schema": _TEXT,
    },
    "trustStore.password": {"label": "TLS trust store password", "schema": _SECRET},
    "keyStore.location": {
        "label": "TLS key store",
        "description": "Java keystore with the client's key and certificate, if nodes require one.",
        "schema": _TEXT,
    },
    "keyStore.password": {"label": "TLS key store password", "schema": _SECRET},
    "cipherSuites": {
        "label": "TLS cipher suites",
        "description": "Comma-separated, in Java's or OpenSSL's names; empty for all.",
        "schema": _TEXT,
    },
    "tls_check_hostname": {
        "label": "TLS host name check",
        "description": "Compare the certificate's names with the contact point.",
        "schema": {"type": ["boolean", "null"], "default": True},
    },
}
"""Of connections to clusters that speak CQL."""

_CASSANDRA = {
    "connection-type": "cdc_cassandra",
    "hook-class-name": f"{_PACKAGE}.hooks.cassandra.CassandraCdcHook",
    "hook-name": "Cassandra (CDC)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "extra"],
        "relabeling": {"host": "Contact points"},
        "placeholders": {"host": "10.0.0.1, 10.0.0.2", "port": "9042"},
    },
    "conn-fields": {
        **_CQL_FIELDS,
        "keystore_password": {
            "label": "Commit log keystore password",
            "description": "Password of the encrypted commit logs' keystore (source.encryption.keystore).",
            "schema": _SECRET,
        },
        "key_password": {
            "label": "Commit log key password",
            "description": "Password of its keys; empty for the keystore's password.",
            "schema": _SECRET,
        },
    },
}

_SCYLLA = {
    "connection-type": "cdc_scylla",
    "hook-class-name": f"{_PACKAGE}.hooks.scylla.ScyllaCdcHook",
    "hook-name": "ScyllaDB (CDC)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "extra"],
        "relabeling": {"host": "Contact points"},
        "placeholders": {"host": "10.0.0.1, 10.0.0.2", "port": "9042"},
    },
    "conn-fields": _CQL_FIELDS,
}

_MONGODB = {
    "connection-type": "cdc_mongodb",
    "hook-class-name": f"{_PACKAGE}.hooks.mongodb.MongodbCdcHook",
    "hook-name": "MongoDB (CDC)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "extra"],
        "relabeling": {"host": "Hosts"},
        "placeholders": {"host": "db1:27017, db2:27017, db3:27017", "port": "27017"},
    },
    "conn-fields": {
        "replicaSet": {"label": "Replica set", "description": "Its name.", "schema": _TEXT},
        "authSource": {
            "label": "Authentication database",
            "description": "Database of the user; empty for admin.",
            "schema": _TEXT,
        },
        "authMechanism": {
            "label": "Authentication mechanism",
            "description": "Empty to negotiate with the server; MONGODB-X509 for login by certificate.",
            "schema": _TEXT,
        },
        "srv": {
            "label": "DNS seed list",
            "description": "The SRV records of the host name list the servers (mongodb+srv).",
            "schema": _FLAG,
        },
        "tls": {"label": "TLS", "description": "Encrypt connections.", "schema": _FLAG},
        "tlsCAFile": {
            "label": "TLS CA file",
            "description": "PEM file of the CA of the servers' certificates.",
            "schema": _TEXT,
        },
        "tlsCertificateKeyFile": {
            "label": "TLS certificate and key file",
            "description": "PEM file with the client's certificate and key.",
            "schema": _TEXT,
        },
        "tlsCertificateKeyFilePassword": {
            "label": "TLS key password",
            "schema": _SECRET,
        },
        "uri_options": {
            "label": "Other options",
            "description": "As in a connection string: readPreference=secondary&maxPoolSize=20",
            "schema": _TEXT,
        },
    },
}

_VITESS = {
    "connection-type": "cdc_vitess",
    "hook-class-name": f"{_PACKAGE}.hooks.vitess.VitessCdcHook",
    "hook-name": "Vitess (CDC)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "extra"],
        "relabeling": {"host": "VTGates", "port": "gRPC port"},
        "placeholders": {"host": "vtgate1, vtgate2:15991", "port": "15991"},
    },
    "conn-fields": {
        "tls": {"label": "TLS", "description": "Encrypt connections.", "schema": _FLAG},
        "tls_ca_file": {
            "label": "TLS CA file",
            "description": "PEM file of the CA of VTGate's certificate.",
            "schema": _TEXT,
        },
        "tls_cert_file": {
            "label": "TLS certificate file",
            "description": "PEM file with the client's certificate, if VTGate requires one.",
            "schema": _TEXT,
        },
        "tls_key_file": {
            "label": "TLS key file",
            "description": "PEM file with the key of that certificate.",
            "schema": _TEXT,
        },
        "tls_server_name": {
            "label": "TLS server name",
            "description": "Name in VTGate's certificate, if it isn't the host's.",
            "schema": _TEXT,
        },
        "headers": {
            "label": "Headers",
            "description": "Sent with each call, for proxies: name:value,name:value",
            "schema": _TEXT,
        },
        "keepalive_seconds": {
            "label": "Keepalive interval",
            "description": "Seconds between pings of an idle connection; empty for none.",
            "schema": _TEXT,
        },
        "max_message_bytes": {
            "label": "Largest message",
            "description": "In bytes; empty for 4 MiB. Each row must fit.",
            "schema": _TEXT,
        },
        "load_balancing": {
            "label": "Load balancing",
            "description": "With several VTGates: pick_first (also if empty) or round_robin.",
            "schema": _TEXT,
        },
        "caller_id": {
            "label": "Caller id",
            "description": "Principal for VTGate's logs and access lists.",
            "schema": _TEXT,
        },
        "vtctld_host": {
            "label": "vtctld",
            "description": "Host of a vtctld that returns the first position; empty: VTGate returns it.",
            "schema": _TEXT,
        },
        "vtctld_port": {
            "label": "vtctld's port",
            "description": "Its gRPC port; empty for 15999.",
            "schema": _TEXT,
        },
        "vtctld_login": {
            "label": "vtctld's login",
            "description": "Login, if vtctld requires one.",
            "schema": _TEXT,
        },
        "vtctld_password": {
            "label": "vtctld's password",
            "description": "Password of that login.",
            "schema": _SECRET,
        },
    },
}

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
}
