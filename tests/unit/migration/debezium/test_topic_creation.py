"""Import of Kafka Connect's ``topic.creation.*`` properties."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.connector.publish.topics import TopicGroup, TopicsOptions
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium


def imported(**creation: str) -> TopicsOptions:
    """Import properties, whose dots are written as two underscores."""
    properties = {
        "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
        "topic.prefix": "shop",
        **{f"topic.creation.{name.replace('__', '.')}": value for name, value in creation.items()},
    }
    return from_debezium(properties).connector.publish.topics


def test_groups_are_imported_in_their_order_with_their_settings() -> None:
    found = imported(
        enable="true",
        groups="compacted,in.dots,in",
        default__replication__factor="3",
        default__partitions="10",
        default__cleanup__policy="compact",
        default__compression__type="lz4",
        compacted__include=r"shop\.db\.a,shop\.db\.b.*",
        compacted__exclude="shop\\.db\\.bad",
        compacted__partitions="-1",
        compacted__retention__ms="7776000000",
        in__include="in",
        in__dots__include="dots",
        in__dots__replication__factor="1",
    )
    assert found == TopicsOptions(
        create=True,
        partitions=10,
        replication=3,
        settings={"cleanup.policy": "compact", "compression.type": "lz4"},
        groups=(
            TopicGroup(
                (r"shop\.db\.a", r"shop\.db\.b.*"),
                (r"shop\.db\.bad",),
                "compacted",
                partitions=-1,
                settings={"retention.ms": "7776000000"},
            ),
            TopicGroup(("dots",), name="in.dots", replication=1),
            TopicGroup(("in",), name="in"),
        ),
    )


def test_without_them_nothing_is_said_and_they_may_be_switched_off() -> None:
    assert imported() == TopicsOptions()
    assert imported(enable="false") == TopicsOptions(create=False)
    assert imported(default__include=".*", default__partitions="-1") == TopicsOptions()


@pytest.mark.parametrize(
    ("creation", "reported"),
    [
        ({"groups": "a"}, r"topic\.creation\.groups names a, and topic\.creation\.a\.include is missing"),
        ({"groups": "a,default", "a__include": "x"}, r"topic\.creation\.groups: expected"),
        ({"groups": "a,a", "a__include": "x"}, r"topic\.creation\.groups: expected"),
        ({"b__partitions": "3"}, r"topic\.creation\.b\.partitions belongs to no group"),
        ({"default__partitions": "0"}, r"topic\.creation\.default\.partitions: expected"),
        ({"groups": "a", "a__include": "("}, "regular expressions that are valid in Python"),
        ({"default__include": "x"}, "group default has all remaining topics"),
    ],
)
def test_what_can_not_be_followed_is_named(creation: dict[str, str], reported: str) -> None:
    with pytest.raises(ConfigurationError, match=reported):
        imported(**creation)
