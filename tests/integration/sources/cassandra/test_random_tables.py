"""Tables of random shapes, random statements, changes delivered in any way: the log alone gives the table."""

from __future__ import annotations

import random
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cassandra.cluster import NoHostAvailable

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from tests.integration.sources.cassandra.random_tables import draw_table, statements
from tests.integration.sources.cassandra.random_writes import write
from tests.oracles.contributions import fed_back
from tests.seeds import seeds

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = [
    pytest.mark.integration,
    # Hypothesis takes a random number that a thread of the driver draws meanwhile for one of a strategy.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]


def _mirror(codec: CassandraCodec, log: pa.Table, rng: random.Random) -> list[str]:
    """Merge shuffled changes in batches, some of them twice; return the rows as JSON."""
    contributions = []
    for batch in log.to_batches():
        decoded = codec.decode(batch, ())
        assert len(decoded.undecodable) == 0
        contributions.append(decoded.contributions)
    whole = pa.Table.from_batches(contributions)
    order = list(range(len(whole)))
    order += rng.sample(order, len(order) // 3)
    rng.shuffle(order)
    cuts = sorted(rng.sample(range(len(order) + 1), 3))
    result = reconcile_cells(whole.slice(0, 0), int(time.time()))
    for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True):
        portion = whole.take(pa.array(order[low:high], pa.int64()))
        result = reconcile_cells(pa.concat_tables([portion, fed_back(result)]), int(time.time()))
    batches = result.live.combine_chunks().to_batches()
    for batch in batches:
        assert codec.project(batch).num_rows == batch.num_rows
    return sorted(text for batch in batches for text in codec.to_json(batch))


def _compare(server: CassandraServer, session: Any, keyspace: str, seed: int, tables: int, count: int) -> int:
    rng = random.Random(seed)
    drawn = [draw_table(rng, f"{keyspace}.t{n}", f"{keyspace}.pair") for n in range(tables)]
    done = refused = unreadable = 0
    for table in drawn:
        session.execute(table.create())
        written = write(session, statements(rng, table, count))
        done, refused = done + written[0], refused + written[1]
    assert refused < done / 10
    time.sleep(3)
    server.roll_segment(session)
    options = {
        "type": "cassandra",
        "cdc_raw": str(server.cdc_raw),
        "node": server.host_id,
        "advanced": {"timestamps": "milliseconds"},  # some lie beyond the lake's
    }
    connector = Connector.from_dict({"name": "c", "source": options, "tables": [rf"{keyspace}\..*"]})
    assert isinstance(connector.source, CassandraOptions)
    address = {"host": server.host, "port": server.port}
    with closing(CassandraSource(connector.source, address, connector.selects)) as source:
        plan = source.plan(None, source.head(), ReadLimit(1 << 40))
        log = pa.Table.from_batches(list(source.reader().read(plan.partitions, ReadMetrics())))
        for table in drawn:
            own = log.filter(pc.equal(log["source_table"], table.name))
            try:
                selected_json = sorted(row[0] for row in session.execute(f"SELECT JSON * FROM {table.name}"))
            except NoHostAvailable:  # the server accepted a value that it can't return
                unreadable += 1
                continue
            assert _mirror(source.codec(table.name), own, rng) == selected_json, table.create()
    assert unreadable <= tables / 4
    return done


@pytest.mark.covers(
    "CAS-LIM-03", "CAS-C50-02", "CAS-UNSUP-01", "CAS-UNSUP-02", "CAS-UNSUP-07", "CAS-GAP-02", "CAS-GAP-03"
)
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_tables_of_random_shapes_equal_the_source(
    cassandra_server: CassandraServer, cassandra_session: Any, random_keyspace: str, seed: int
) -> None:
    assert _compare(cassandra_server, cassandra_session, random_keyspace, seed, tables=4, count=80) > 250


@pytest.mark.covers("CAS-LIM-03")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_ten_thousand_statements_on_forty_tables_equal_the_source(
    cassandra_server: CassandraServer, cassandra_session: Any, random_keyspace: str, seed: int
) -> None:
    assert _compare(cassandra_server, cassandra_session, random_keyspace, seed, tables=4, count=270) > 1000
