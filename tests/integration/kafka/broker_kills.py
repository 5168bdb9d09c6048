"""A broker that is killed at a named point: in an open transaction, before its commit.

A single broker that is killed between the decision to commit and the markers in the partitions may regard the
transaction as complete after its restart, without having written the markers (seen with Kafka 4.3.1). Readers
of committed records then stop at the transaction for ever, whatever the publisher does; an administrator has
to end it (docs/publishing.md, "When something fails"). A transaction is open only after the one before it is
complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer


def killing_producer(kill: Callable[[], object], commits: int) -> type[Producer]:
    """Return a client that kills the broker before one of its commits.

    Args:
        kill: Kills the broker.
        commits: The number of the commit, from 1, among those of all clients of the class.
    """

    class KillingProducer(Producer):
        calls = 0

        def commit_transaction(self, *args: Any) -> None:
            KillingProducer.calls += 1
            if KillingProducer.calls == commits:
                kill()
            super().commit_transaction(*args)

    return KillingProducer
