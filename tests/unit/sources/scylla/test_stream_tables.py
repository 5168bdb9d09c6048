"""How a server's tables of streams are read, and what is made of a set that isn't there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.scylla.generations import StreamTables
from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced
from tests.unit.sources.scylla.server_session import ServerSession

BEGIN_MS = 1_700_000_000_123
BEGIN = datetime.fromtimestamp(BEGIN_MS / 1000, UTC).replace(tzinfo=None)
STREAM = bytes.fromhex("c000000000000000aacd159e24000051")
TIMES = "system_distributed.cdc_generation_timestamps"
STREAMS = "system_distributed.cdc_streams_descriptions_v2"


def of_vnodes(nodes: int = 1, *streams: bytes) -> ServerSession:
    described = [{"streams": streams}] if streams else []
    return ServerSession({TIMES: [{"time": BEGIN}], STREAMS: described}, nodes)


@pytest.mark.covers("SCY-GEN-01")
@pytest.mark.parametrize(("nodes", "level"), [(1, "ONE"), (3, "QUORUM")])
def test_a_replica_that_lags_hides_no_generation_and_no_stream(nodes: int, level: str) -> None:
    session = of_vnodes(nodes, STREAM)
    timeline = StreamTables(session, ScyllaAdvanced()).timelines(["s.t"])["s.t"]
    assert timeline.groups(BEGIN_MS) == {"5": (STREAM,)}
    assert session.requests[1:] == [(TIMES, level), (STREAMS, level)]


def test_a_set_whose_streams_are_not_described_is_refused_until_they_are() -> None:
    tables = {"system.cdc_timestamps": [{"time": BEGIN}], "system.cdc_streams": []}
    for session, what in ((of_vnodes(), "generation"), (ServerSession(tables), r"stream set of s\.t")):
        streams = StreamTables(session, ScyllaAdvanced())
        timeline = streams.timelines(["s.t"])["s.t"]
        for _ in range(2):
            with pytest.raises(TransientError, match=rf"the {what} that starts at .* no stream descriptions"):
                timeline.groups(BEGIN_MS)


def test_a_table_without_streams_yet_does_not_stop_others_where_all_have_tablets() -> None:
    nothing_yet = ServerSession({"system.cdc_timestamps": [], "system.cdc_streams": []})
    assert StreamTables(nothing_yet, ScyllaAdvanced()).timelines(["s.t"])["s.t"].begins_ms == ()
    with pytest.raises(ConfigurationError, match="does not expose CDC generations"):
        StreamTables(ServerSession({}), ScyllaAdvanced()).timelines(["s.t"])
