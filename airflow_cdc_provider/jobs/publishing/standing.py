"""Where publishing to Pulsar stands: in the lake, in commits of a table without rows.

A topic of Pulsar would be a poor place: messages that no subscription holds go, and a namespace's time to
live takes those that one holds. Each commit is a compare-and-set, so of two runs of a connector one ends.

The standing is stored **before** the first record of a run too, with the moment by which its events are made:
the next run makes the same records, whose sequence ids the broker knows.
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
class Standing:
    """How far a producer came.

    Args:
        producer: Its name. Sequence ids mean something under it alone, so whoever begins anew takes another.
        position: The batch that is being published; ``now_ns`` isn't 0 while records of it may have been
            sent.
    """

    producer: str
    position: PublishPosition

    def to_json(self) -> str:
        """Write it."""
        return json.dumps({"producer": self.producer, "position": self.position.to_json().decode()})

    @classmethod
    def from_json(cls, text: str) -> Standing:
        """Read what :meth:`to_json` wrote.

        Raises:
            OffsetMissing: It is something else.
        """
        try:
            values = json.loads(text)
            return cls(values["producer"], PublishPosition.from_json(values["position"].encode()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OffsetMissing(
                "where publishing stands can't be read",
                found=text[:200],
                remedy="set it by airflow cdc offsets publish --batch N",
            ) from error


class StandingTable:
    """The table ``<connector>_published``.

    Args:
        table: It need not exist.
    """

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._head: Head | None = None

    def read(self) -> Standing | None:
        """Return what is stored, None for nothing; what is stored next follows on this.

        Raises:
            OffsetMissing: It can't be read.
        """
        if not self._table.exists():
            return None
        self._head = self._table.head()
        text = self._head.properties.get(_PROPERTY)
        return None if text is None else Standing.from_json(text)

    def store(self, standing: Standing) -> None:
        """Store it.

        Raises:
            CommitConflict: Another run stored something since this one has read or stored.
        """
        from pyspark.sql.types import StringType, StructField, StructType

        if self._head is None:
            self._table.create(StructType([StructField("position", StringType())]))
            self._head = self._table.head()
        self._head = self._table.commit(self._head, properties={_PROPERTY: standing.to_json()})
