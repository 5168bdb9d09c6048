"""One real Kafka broker in KRaft mode, from Maven's jars: broker and controller in one process.

Topics are made by hand (:meth:`KafkaServer.create_topic`), unless ``create_topics`` lets the broker make them
as clients ask for them, as its own default is. A second listener asks for TLS and a login where ``secured``.
With ``users`` another one asks these for their passwords, and they may do what access lists allow, at first
nothing; who comes to the listener without login may do everything.
"""

from __future__ import annotations

import secrets
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from server_kit.cache import require_space
from server_kit.jars import kafka_jars
from server_kit.ports import free_port, require_free
from server_kit.programs import find_java, find_program, run_program
from server_kit.server import Server

if TYPE_CHECKING:
    from confluent_kafka import Message

_NEEDED_BYTES = 512 << 20
_LOG4J = """appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""
USER = "cdc"
PASSWORD = "cdc-password"  # noqa: S105  # of a broker that lives as long as a test


class KafkaServer(Server):
    """One broker. All ports are free ones unless given.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. In a folder
            that was used before it starts with its data.
        port: Port for clients, in plain text without login.
        secured: Whether there is a listener with TLS that asks for a name and password, too.
        users: Names of users who need rights; None: there are none, and everybody may do everything.
        create_topics: Whether the broker makes a topic that a client asks for.
        settings: Further lines of server.properties, which win over all others.
        heap_mib: Java heap.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        secured: bool = False,
        users: Sequence[str] | None = None,
        create_topics: bool = False,
        settings: Mapping[str, object] | None = None,
        heap_mib: int = 384,
        start_timeout_seconds: float = 120,
    ) -> None:
        super().__init__("Kafka", folder, host="127.0.0.1", port=port or free_port(), log="broker.log")
        self.controller_port = free_port()
        self.secured_port = free_port() if secured else 0
        self.users_port = free_port() if users else 0
        self.create_topics = create_topics
        self.heap_mib = heap_mib
        self.start_timeout_seconds = start_timeout_seconds
        self._settings = dict(settings or {})
        self._passwords = {user: secrets.token_hex(16) for user in users or ()}

    @property
    def bootstrap(self) -> str:
        """Host and port for clients."""
        return f"{self.host}:{self.port}"

    @property
    def authority(self) -> Path:
        """Certificate of the authority that signed the secured listener's."""
        return self.folder / "ca.pem"

    @property
    def secured_config(self) -> dict[str, str]:
        """What a client of librdkafka needs for the secured listener."""
        return {
            "bootstrap.servers": f"{self.host}:{self.secured_port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.authority),
        }

    def config_of(self, user: str) -> dict[str, str]:
        """Return what a client of librdkafka needs to log in as one of the users."""
        return {
            "bootstrap.servers": f"{self.host}:{self.users_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": user,
            "sasl.password": self._passwords[user],
        }

    def start(self) -> Self:
        """Start the broker and wait until it serves clients.

        Raises:
            ConfigurationError: No Java, a taken port, a full disk, or a failed start with the end of its log.
        """
        java = find_java()
        classpath = f"{kafka_jars()}/*"
        self.folder.mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "Kafka")
        for port in filter(None, (self.port, self.controller_port, self.secured_port, self.users_port)):
            require_free(port, self.host, "Kafka")
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        (self.folder / "log4j2.properties").write_text(_LOG4J)
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        if not (self.folder / "data" / "meta.properties").exists():
            # An id that began with "-" would be taken for an option.
            cluster = "K" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
            java_tool = [java, "-XX:TieredStopAtLevel=1", "-cp", classpath, logging]
            tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties), "--standalone"]
            run_program([*java_tool, *tool], "formatting the broker's folder")
        flags = [f"-Xmx{self.heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging]
        self._process.start([java, *flags, "-cp", classpath, "kafka.Kafka", str(properties)], self.log)
        self._process.wait_until(self._answers, "an answer to a client", self.start_timeout_seconds)
        return self

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> None:
        """Make a topic.

        Args:
            name: Its name.
            partitions: How many it has.
            **config: Its settings, with ``_`` for ``.`` in their names.
        """
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
        made[name].result(30)

    def read(
        self, topic: str, *, isolation: str = "read_committed", timeout_seconds: float = 30
    ) -> list[Message]:
        """Return all records that a topic has now, partition by partition.

        Args:
            topic: Its name.
            isolation: ``read_committed`` or ``read_uncommitted``.
            timeout_seconds: How long to wait for them. Records of a transaction that is still open hold those
                after them back.

        Raises:
            TimeoutError: They didn't come in time.
        """
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"read-{uuid.uuid4()}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout_seconds).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            records: dict[int, list[Message]] = {number: [] for number in partitions}
            # Who writes on meanwhile would keep the end from coming.
            last = {n: consumer.get_watermark_offsets(TopicPartition(topic, n))[1] - 1 for n in partitions}
            ends: set[int] = set()
            deadline = time.monotonic() + timeout_seconds
            while len(ends) < len(partitions):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"partitions {set(partitions) - ends} of {topic} have no end")
                for message in consumer.consume(10_000, 0.2):
                    number = message.partition()
                    error = message.error()
                    if error is None:
                        records[number].append(message)
                        if message.offset() >= last[number]:
                            ends.add(number)
                    elif error.name() == "_PARTITION_EOF":
                        ends.add(number)
                    else:
                        raise KafkaException(error)
            return [message for number in sorted(records) for message in records[number]]
        finally:
            consumer.close()

    def _properties(self) -> dict[str, Any]:
        listeners = {"PLAINTEXT": self.port}
        if self.secured_port:
            listeners["SASL_SSL"] = self.secured_port
        if self.users_port:
            listeners["SASL_PLAINTEXT"] = self.users_port
        protocols = {"CONTROLLER": "PLAINTEXT", **{name: name for name in listeners}}
        addresses = [f"{name}://{self.host}:{port}" for name, port in listeners.items()]
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"{self.host}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join([*addresses, f"CONTROLLER://{self.host}:{self.controller_port}"]),
            "advertised.listeners": ",".join(addresses),
            "listener.security.protocol.map": ",".join(":".join(pair) for pair in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": str(self.create_topics).lower(),
            "num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "metadata.max.idle.interval.ms": 0,  # else records that say nothing are written twice a second
            "num.network.threads": 2,
            "num.io.threads": 2,
            **(self._secured_properties() if self.secured_port else {}),
            **(self._users_properties() if self.users_port else {}),
            **self._settings,
        }

    def _secured_properties(self) -> dict[str, Any]:
        if not self.authority.exists():
            self._make_certificates()
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.folder / "broker.pem",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": _logins({USER: PASSWORD}),
        }

    def _users_properties(self) -> dict[str, Any]:
        return {
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": _logins(self._passwords),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def _make_certificates(self) -> None:
        """Make an authority and a certificate that it signed; the broker wants it and its key in one file."""
        openssl = find_program("openssl", "openssl")
        new = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
        of_broker = ["-subj", "/CN=broker", "-addext", f"subjectAltName=IP:{self.host}"]
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key"]
        for command in (
            [*new, "-keyout", "ca.key", "-out", self.authority.name, "-subj", "/CN=authority"],
            [*new, "-keyout", "broker.key", "-out", "broker.crt", *of_broker, *signed],
        ):
            run_program(command, "making the broker's certificate", cwd=self.folder)
        parts = [(self.folder / name).read_text() for name in ("broker.key", "broker.crt")]
        (self.folder / "broker.pem").write_text("".join(parts))

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _close_clients(self) -> None:
        """Clients end by themselves."""


def _logins(passwords: Mapping[str, str]) -> str:
    """Return who may log in, as a line of server.properties has it."""
    users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
