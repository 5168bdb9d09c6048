from __future__ import annotations

import pytest

from airflow_cdc_provider.events.topics import topic_name


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("p", "shop", "orders"), "p.shop.orders"),
        (("p", "shop", "dash-and.dot"), "p.shop.dash-and.dot"),
        (("p", "shop", "sp ace"), "p.shop.sp_ace"),
        (("p", "shop", "ünïcode_名"), "p.shop._n_code__"),
        (("p", "shop", "a🙂b"), "p.shop.a__b"),
        (("p", "shop", "x" * 300), ("p.shop." + "x" * 300)[:249]),
        ((".",), "_"),
        (("", ""), "_"),
        (("..",), "__"),
    ],
)
def test_names_are_made_of_what_kafka_allows(parts: tuple[str, ...], name: str) -> None:
    assert topic_name(*parts) == name
