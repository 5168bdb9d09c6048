"""The published position for Pulsar: stored in the lake, in commits of a table without rows.

A Pulsar topic isn't suitable: messages without a subscription are deleted, and a namespace's time to live
deletes those of a subscription. Each commit is a compare-and-set, so one of two concurrent runs fails.

The position is also stored **before** the first record of a run, with the build time of its events: the next
run builds the same records, whose sequence ids the broker knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.exceptions import OffsetMissing
from airflow_cdc_provider.kafka.positions import PublishPosition

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.table import Head, LakeTable

_PROPERTY: Final = "cdc.published"


@dataclass(frozen=True)
class PulsarPosition:
    """The published position of a producer.

    Args:
        producer: Its name. Sequence ids are only valid for a name, so a run that starts over takes a new one.
        position: The position; ``now_ns`` isn't 0 while records of its batch may have been sent.
    """

    producer: str
    position: PublishPosition

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({"producer": self.producer, "position": self.position.to_json().decode()})

    @classmethod
    def from_json(cls, text: str) -> PulsarPosition:
        """Read what :meth:`to_json` wrote.

        Raises:
            OffsetMissing: The text is invalid.
        """
        try:
            values = json.loads(text)
            return cls(values["producer"], PublishPosition.from_json(values["position"].encode()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OffsetMissing(
                "the published position can't be read",
                found=text[:200],
                remedy="set it by airflow cdc offsets publish-from --batch N",
            ) from error


class PulsarPositionTable:
    """The table ``<connector>_published``.

    Args:
        table: The table; it need not exist.
    """

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._head: Head | None = None

    def read(self) -> PulsarPosition | None:
        """Return the stored position, None for none; the next :meth:`store` replaces exactly this one.

        Raises:
            OffsetMissing: The position can't be read.
        """
        if not self._table.exists():
            return None
        self._head = self._table.head()
        text = self._head.properties.get(_PROPERTY)
        return None if text is None else PulsarPosition.from_json(text)

    def store(self, stored: PulsarPosition) -> None:
        """Store a position.

        Raises:
            CommitConflict: Another run stored a position since this one has read or stored.
        """
        from pyspark.sql.types import StringType, StructField, StructType

        if self._head is None:
            self._table.create(StructType([StructField("position", StringType())]))
            self._head = self._table.head()
        self._head = self._table.commit(self._head, properties={_PROPERTY: stored.to_json()})
