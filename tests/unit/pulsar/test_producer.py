"""The producer with a broker that goes away at any message."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from airflow_cdc_provider.pulsar.settings import ClientSettings
from tests.unit.pulsar.fake_broker import FakeBroker

KEY = '{"type":"record","name":"t","namespace":"ks","fields":[]}'
LEAD = "persistent://public/default/"


def records(count: int, schemas: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": [f"data-ks.t{n % 3}" for n in range(count)],
            "key_schema": [KEY] * count,
            "value_schema": [KEY.replace('"t"', f'"t{n * schemas // max(count, 1)}"') for n in range(count)],
            "sequence": pa.array(range(count), pa.int64()),
            "key": [b"%d" % (n % 7) for n in range(count)],
            "value": [None if n % 4 == 0 else b"v%d" % n for n in range(count)],
            "headers": [f'["writetime","\\"{n}\\""]' for n in range(count)],
        }
    )


def producer_of(broker: FakeBroker, token: str = "") -> PulsarProducer:
    return PulsarProducer(ClientSettings(broker.url, token, timeout_seconds=10), "shop.1", "public/default")


@settings(max_examples=15)
@given(st.lists(st.integers(0, 60), max_size=4), st.integers(1, 3))
def test_what_is_sent_again_until_it_is_through_is_stored_once_and_in_order(
    deaths: list[int], schemas: int
) -> None:
    with FakeBroker() as broker:
        broker.partitions[f"{LEAD}data-ks.t1"] = 2
        for death in deaths:
            broker.dies_after = death
            try:
                producer_of(broker).send([records(90, schemas)])
            except BrokersUnavailable:
                continue
        broker.dies_after = None
        producer = producer_of(broker)
        producer.send([records(90, schemas).slice(0, 40), records(90, schemas).slice(40)])
        assert not producer.undeduplicated
        for stored in broker.stored.values():
            assert stored == sorted(stored), "in order"
        assert sorted(n for stored in broker.stored.values() for n, _ in stored) == list(range(90))
        assert set(broker.stored) <= {
            f"{LEAD}data-ks.t{n}" for n in ("0", "1-partition-0", "1-partition-1", "2")
        }


def test_a_broker_that_forgets_is_named_by_its_topics() -> None:
    with FakeBroker(deduplicates=False) as broker:
        producer = producer_of(broker)
        producer.send([records(2)])
        assert producer.undeduplicated == {f"{LEAD}data-ks.t0", f"{LEAD}data-ks.t1"}


def test_the_token_is_shown_to_the_broker_alone() -> None:
    with FakeBroker() as broker:
        broker.refuses = 4
        with pytest.raises(ConfigurationError, match="AuthorizationError") as error:
            producer_of(broker, "s3cret").send([records(1)])
        assert broker.tokens == [b"s3cret"]
    assert "s3cret" not in str(error.value)
    with pytest.raises(BrokersUnavailable) as away:
        producer_of(broker, "s3cret").send([records(1)])
    assert "s3cret" not in str(away.value)
