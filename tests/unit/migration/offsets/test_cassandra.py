"""Debezium's own file of positions in the commit log."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.cassandra import CassandraOffsets, position_of
from airflow_cdc_provider.sources.cassandra.position import WHOLE

FILE = rb"""#Mon Nov 23 15:00:00 UTC 2026
shop.orders=CommitLog-7-1795247392880.log\:307939
shop.items=CommitLog-7-1795247392875.log\:40
"""


def test_a_capture_resumes_from_the_oldest_segment_of_all_tables() -> None:
    offset, remarks = position_of(FILE)
    assert offset.position(1795247392874) == WHOLE
    assert offset.position(1795247392875) == offset.position(1795247392880) == 0, "read from their start"
    assert len(remarks) == 2
    assert "shop.items at segment 1795247392875, others up to 1795247392880" in remarks[1]
    assert CassandraOffsets.recognizes(FILE)
    assert not CassandraOffsets.recognizes(b' {"host": {}}')


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"shop.orders=\\:-1\n", "invalid position of shop.orders"),
        (b"# nothing\n", "the file has no position"),
    ],
)
def test_other_files_are_rejected(content: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        position_of(content)
