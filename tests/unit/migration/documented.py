"""Copies of configurations in the documentation of Debezium's connectors, and of their tables of defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CASSANDRA_EXAMPLE: Final = """\
connector.name=test_connector
commit.log.relocation.dir=/Users/test_user/debezium-connector-cassandra/test_dir/relocation/
http.port=8000
cassandra.config=/usr/local/etc/cassandra/cassandra.yaml
cassandra.hosts=127.0.0.1
cassandra.port=9042
kafka.producer.bootstrap.servers=127.0.0.1:9092
kafka.producer.retries=3
kafka.producer.retry.backoff.ms=1000
kafka.topic.prefix=test_prefix
key.converter=io.confluent.connect.avro.AvroConverter
key.converter.schema.registry.url: http://localhost:8081
value.converter=io.confluent.connect.avro.AvroConverter
value.converter.schema.registry.url: http://localhost:8081
offset.backing.store.dir=/Users/test_user/debezium-connector-cassandra/test_dir/
snapshot.consistency=ONE
snapshot.mode=ALWAYS
latest.commit.log.only=true
"""
CASSANDRA_PRODUCER: Final = "".join(
    f"kafka.{client}.{setting}\n"
    for client in ("producer", "consumer")
    for setting in (
        "security.protocol=SSL",
        "ssl.keystore.location=/var/private/ssl/kafka.server.keystore.jks",
        "ssl.keystore.password=secret",
        "ssl.truststore.location=/var/private/ssl/kafka.server.truststore.jks",
        "ssl.truststore.password=secret",
        "ssl.key.password=secret",
    )
)
MONGODB_EXAMPLE: Final = """\
{
  "name": "inventory-connector",
  "config": {
    "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
    "mongodb.connection.string": "mongodb://192.168.99.100:27017/?replicaSet=rs0",
    "topic.prefix": "fullfillment",
    "collection.include.list": "inventory[.]*"
  }
}
"""
VITESS_EXAMPLE: Final = """\
{
  "name": "inventory-connector",
  "config": {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "database.hostname": "192.168.99.100",
    "database.port": "15991",
    "database.user": "vitess",
    "database.password": "secret",
    "vitess.keyspace": "commerce",
    "vitess.tablet.type": "MASTER",
    "vitess.vtctld.host": "192.168.99.101",
    "vitess.vtctld.port": "15999",
    "vitess.vtctld.user": "vitess",
    "vitess.vtctld.password": "secret",
    "topic.prefix": "fullfillment",
    "tasks.max": 1
  }
}
"""
VITESS_TASKS_EXAMPLE: Final = """\
{
  "name": "inventory-connector",
  "config": {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "database.hostname": "192.168.99.100",
    "database.port": "15991",
    "database.user": "vitess",
    "database.password": "secret",
    "vitess.keyspace": "commerce",
    "vitess.tablet.type": "MASTER",
    "vitess.vtctld.host": "192.168.99.101",
    "vitess.vtctld.port": "15999",
    "vitess.vtctld.user": "vitess",
    "vitess.vtctld.password": "secret",
    "database.server.name": "fullfillment",
    "vitess.offset.storage.per.task": true,
    "vitess.offset.storage.task.key.gen": 1,
    "vitess.prev.num.tasks": 1,
    "tasks.max": 2
  }
}
"""

LEAST: Final[Mapping[str, Mapping[str, str]]] = {
    "cassandra": {
        "connector.class": "io.debezium.connector.cassandra.Cassandra5Connector",
        "topic.prefix": "p",
    },
    "mongodb": {
        "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
        "topic.prefix": "p",
    },
    "vitess": {
        "connector.class": "io.debezium.connector.vitess.VitessConnector",
        "topic.prefix": "p",
        "vitess.keyspace": "inventory",
    },
    "scylla": {
        "connector.class": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
        "topic.prefix": "p",
        "scylla.cluster.ip.addresses": "h:1",
        "scylla.table.names": "k.t",
    },
    "debezium": {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "topic.prefix": "p",
    },
}
"""Properties without a default, by source."""

DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "cassandra": {
        "snapshot.mode": "INITIAL",
        "snapshot.consistency": "ALL",
        "http.port": "8000",
        "cassandra.hosts": "localhost",
        "cassandra.port": "9042",
        "cassandra.ssl.enabled": "false",
        "commit.log.post.processing.enabled": "true",
        "commit.log.relocation.dir.poll.interval.ms": "10000",
        "commit.log.transfer.class": "io.debezium.connector.cassandra.BlackHoleCommitLogTransfer",
        "commit.log.error.reprocessing.enabled": "false",
        "latest.commit.log.only": "false",
        "offset.flush.interval.ms": "0",
        "max.offset.flush.size": "100",
        "max.queue.size": "8192",
        "max.batch.size": "2048",
        "max.queue.size.in.bytes": "0",
        "poll.interval.ms": "1000",
        "schema.refresh.interval.ms": "10000",
        "cdc.dir.poll.interval.ms": "10000",
        "snapshot.scan.interval.ms": "10000",
        "tombstones.on.delete": "false",
        "field.exclude.list": "",
        "num.of.change.event.queues": "1",
        "sanitize.field.names": "false",
        "skipped.operations": "",
        "converters": "",
    },
    "mongodb": {
        "mongodb.allow.offset.invalidation": "false",
        "mongodb.authentication.class": "DefaultMongoDbAuthProvider",
        "mongodb.authsource": "admin",
        "mongodb.ssl.enabled": "false",
        "mongodb.ssl.invalid.hostname.allowed": "false",
        "filters.match.mode": "regex",
        "database.include.list": "",
        "database.exclude.list": "",
        "collection.include.list": "",
        "collection.exclude.list": "",
        "capture.mode": "change_streams_update_full",
        "capture.mode.full.update.type": "lookup",
        "capture.scope": "deployment",
        "field.exclude.list": "",
        "field.renames": "",
        "tombstones.on.delete": "true",
        "schema.name.adjustment.mode": "none",
        "field.name.adjustment.mode": "none",
        "max.batch.size": "2048",
        "max.queue.size": "8192",
        "max.queue.size.in.bytes": "0",
        "poll.interval.ms": "500",
        "connect.backoff.initial.delay.ms": "1000",
        "connect.backoff.max.delay.ms": "120000",
        "connect.max.attempts": "16",
        "source.struct.version": "v2",
        "heartbeat.interval.ms": "0",
        "skipped.operations": "t",
        "streaming.delay.ms": "0",
        "snapshot.fetch.size": "0",
        "snapshot.max.threads": "1",
        "snapshot.mode": "initial",
        "snapshot.mode.configuration.based.snapshot.data": "false",
        "snapshot.mode.configuration.based.snapshot.schema": "false",
        "snapshot.mode.configuration.based.start.stream": "false",
        "snapshot.mode.configuration.based.snapshot.on.schema.error": "false",
        "snapshot.mode.configuration.based.snapshot.on.data.error": "false",
        "provide.transaction.metadata": "false",
        "retriable.restart.connector.wait.ms": "10000",
        "mongodb.poll.interval.ms": "30000",
        "mongodb.connect.timeout.ms": "10000",
        "mongodb.heartbeat.frequency.ms": "10000",
        "mongodb.socket.timeout.ms": "0",
        "mongodb.server.selection.timeout.ms": "30000",
        "cursor.pipeline.order": "internal_first",
        "cursor.oversize.handling.mode": "fail",
        "cursor.oversize.skip.threshold": "0",
        "cursor.max.await.time.ms": "0",
        "signal.enabled.channels": "source",
        "incremental.snapshot.chunk.size": "1024",
        "incremental.snapshot.watermarking.strategy": "insert_insert",
        "topic.naming.strategy": "io.debezium.schema.DefaultTopicNamingStrategy",
        "topic.delimiter": ".",
        "topic.cache.size": "10000",
        "topic.heartbeat.prefix": "__debezium-heartbeat",
        "topic.transaction": "transaction",
        "errors.max.retries": "-1",
        "guardrail.collections.max": "0",
        "guardrail.collections.limit.action": "warn",
        "extended.headers.enabled": "true",
        "signal.kafka.topic": "p-signal",
        "signal.kafka.groupId": "kafka-signal",
        "signal.kafka.poll.timeout.ms": "100",
    },
    "vitess": {
        "tasks.max": "1",
        "database.port": "15991",
        "vitess.gtid": "current",
        "vitess.stop_on_reshard": "false",
        "vitess.tablet.type": "MASTER",
        "tombstones.on.delete": "true",
        "vitess.offset.storage.per.task": "false",
        "vitess.offset.storage.task.key.gen": "-1",
        "vitess.prev.num.tasks": "-1",
        "message.key.columns": "",
        "schema.name.adjustment.mode": "none",
        "event.processing.failure.handling.mode": "fail",
        "max.queue.size": "20240",
        "max.batch.size": "2048",
        "max.queue.size.in.bytes": "0",
        "poll.interval.ms": "500",
        "sanitize.field.names": "false",
        "skipped.operations": "",
        "provide.transaction.metadata": "false",
        "vitess.keepalive.interval.ms": "9223372036854775807",
        "vitess.grpc.headers": "",
        "vitess.grpc.max_inbound_message_size": "4194304",
        "topic.naming.strategy": "io.debezium.schema.SchemaTopicNamingStrategy",
        "topic.delimiter": ".",
        "topic.cache.size": "10000",
        "topic.transaction": "transaction",
    },
}
"""Documented defaults, by source."""
