"""The settings of librdkafka that a connection and a declaration may have, by what they are about.

All other names are rejected. librdkafka has settings that load a library (``plugin.library.paths``,
``ssl.providers``, ``ssl.engine.location``), run a shell command (``sasl.kerberos.kinit.cmd``), write a file
(``offset.store.path``) or send a file's content to an address (``sasl.oauthbearer.assertion.file``), and
later releases may add others. confluent-kafka adds names of callbacks and nested settings. None of them is
here.
"""

from __future__ import annotations

from typing import Final

LOGIN: Final = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        *(f"https.ca.{name}" for name in ("location", "pem")),
        *(f"sasl.{name}" for name in ("mechanism", "mechanisms", "username", "password")),
        *(
            f"sasl.kerberos.{name}"
            for name in ("service.name", "principal", "keytab", "min.time.before.relogin")
        ),
        "enable.sasl.oauthbearer.unsecure.jwt",
        *(
            f"sasl.oauthbearer.{name}"
            for name in (
                "config",
                "method",
                "client.id",
                "client.secret",
                "client.credentials.client.id",
                "client.credentials.client.secret",
                "scope",
                "extensions",
                "token.endpoint.url",
                "sub.claim.name",
                "grant.type",
                "metadata.authentication.type",
            )
        ),
        *(
            f"sasl.oauthbearer.assertion.{name}"
            for name in (
                "algorithm",
                "private.key.file",
                "private.key.passphrase",
                "private.key.pem",
                "claim.aud",
                "claim.exp.seconds",
                "claim.iss",
                "claim.jti.include",
                "claim.nbf.seconds",
                "claim.sub",
            )
        ),
    }
)
"""Brokers and login."""

TLS: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm",
        *(f"ssl.{name}" for name in ("cipher.suites", "curves.list", "sigalgs.list", "crl.location")),
        *(f"ssl.key.{name}" for name in ("location", "password", "pem")),
        *(f"ssl.{side}.{name}" for side in ("ca", "certificate") for name in ("location", "pem")),
        *(f"ssl.keystore.{name}" for name in ("location", "password")),
    }
)
"""TLS to brokers: any of them implies it."""

OF_GROUPS: Final = frozenset(
    {
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
"""Consumer groups: in a connection for other DAGs."""

OF_CONSUMERS: Final = frozenset(
    {
        "check.crcs",
        "coordinator.query.interval.ms",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "queued.max.messages.kbytes",
        "queued.min.messages",
    }
)
"""Reading; producers don't accept some of them."""

OF_PRODUCERS: Final = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "linger.ms",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "sticky.partitioning.linger.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Writing."""

OF_NETWORK: Final = frozenset(
    {
        "allow.auto.create.topics",
        "api.version.fallback.ms",
        "api.version.request",
        "api.version.request.timeout.ms",
        "broker.address.family",
        "broker.address.ttl",
        "broker.version.fallback",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "log.connection.close",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.copy.max.bytes",
        "message.max.bytes",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "statistics.interval.ms",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)
"""Connections, buffers and metadata of all clients."""

TUNING: Final = OF_NETWORK | OF_PRODUCERS | OF_CONSUMERS | OF_GROUPS
"""What a declaration may have; those that delivery determines are rejected there too."""
