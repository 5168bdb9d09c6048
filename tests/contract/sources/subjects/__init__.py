"""The sources that the suite runs on, a module each."""

from __future__ import annotations

from typing import Final

from tests.contract.sources.harness import SourceUnderTest
from tests.contract.sources.subjects.cassandra import Cassandra
from tests.contract.sources.subjects.debezium import Debezium
from tests.contract.sources.subjects.mongodb import Mongodb
from tests.contract.sources.subjects.scylla import Scylla
from tests.contract.sources.subjects.vitess import Vitess

SUBJECTS: Final[tuple[type[SourceUnderTest], ...]] = (Cassandra, Scylla, Mongodb, Vitess, Debezium)
