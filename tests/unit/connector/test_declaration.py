from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector, load_connector
from airflow_cdc_provider.exceptions import ConfigurationError

CASSANDRA: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "cassandra", "conn_id": "cassandra_shop", "cdc_raw": "/landing"},
    "tables": [r"shop\..*"],
    "exclude_tables": [r"shop\.secret"],
    "lake": {"catalog": "lake", "namespace": "mirrors", "merge": {"min_pending_ratio": 0.1}},
}


def test_yaml_and_python_declare_the_same_connector(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(
        """
name: shop
source: {type: cassandra, conn_id: cassandra_shop, cdc_raw: /landing}
tables: ['shop\\..*']
exclude_tables: ['shop\\.secret']
lake: {catalog: lake, namespace: mirrors, merge: {min_pending_ratio: 0.1}}
"""
    )

    assert load_connector(file) == Connector.from_dict(CASSANDRA)


def test_plain_data_and_back_gives_an_equal_connector() -> None:
    connector = Connector.from_dict(CASSANDRA)

    assert Connector.from_dict(connector.to_dict()) == connector


def test_patterns_that_select_no_table_are_named() -> None:
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "tables": [r"a\..*", "b.c", r"b\.d", "b.cc"]}
    )
    assert connector.unmatched(["a.x", "b.c", "b.d", "b.cc"]) == []
    assert connector.unmatched(["a.\n", "b.c", "b.d", "b.cc"]) == [], "a dot matches a line feed, too"
    found = [text.partition("matches ")[2] for text in connector.unmatched(["b.c", "b.cd"])]
    assert found == [r"a\..* in tables", r"b\.d in tables", "b.cc in tables"]


def test_tables_are_selected_by_whole_names() -> None:
    connector = Connector.from_dict(CASSANDRA)

    assert connector.selects("shop.orders")
    assert not connector.selects("shop.secret")
    assert not connector.selects("workshop.orders")


@pytest.mark.covers("CAS-FAULT-01")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"source": {"type": "oracle"}},
            "source.type: expected one of cassandra, debezium, mongodb, scylla, vitess, found 'oracle'",
        ),
        ({"source": {"type": "cassandra", "con_id": "x"}}, "unknown option source.con_id"),
        ({"source": {"type": "cassandra", "con_id": "x"}}, "Did you mean conn_id?"),
        ({"tabels": ["x"]}, "Did you mean tables?"),
        ({"tables": ["shop("]}, "invalid value for option tables: expected regular expressions"),
        ({"tables": "shop"}, "invalid value for option tables: expected a list, found 'shop' (str)"),
        ({"name": "a b"}, "invalid value for option name: expected letters"),
        (
            {"lake": {"format_version": 4}},
            "invalid value for option lake.format_version: expected one of 2, 3, found 4",
        ),
        (
            {"lake": {"merge": {"min_pending_ratio": -1}}},
            "lake.merge.min_pending_ratio: expected at least 0",
        ),
        (
            {"source": {"type": "cassandra", "advanced": {"fetch_size": True}}},
            "expected an integer, found True",
        ),
        ({"snapshot": {"mode": "intial"}}, "Did you mean initial?"),
        (
            {"publish": {"envelope": "datastax", "cassandra": {"converters": {"hide": {"columns": ".*"}}}}},
            "option publish.cassandra.converters has no effect in envelope datastax",
        ),
        (
            {"publish": {"envelope": "datastax", "cassandra": {"decimals": "string"}}},
            "option publish.cassandra.decimals has no effect in envelope datastax: expected its default",
        ),
        (
            {"publish": {"cassandra": {"key_in_value": True}}},
            "option publish.cassandra.key_in_value has no effect in envelope debezium",
        ),
        ({"metric_tags": {"table": "a"}}, "metric_tags: expected names other than"),
        ({"metric_tags": {"1a": "a"}}, "expected names of letters, digits, _ . and -"),
        ({"metric_tags": {"team": "a,b=c"}}, "characters without space , = | # (team: 'a,b=c')"),
        (
            {"metric_tags": {"team": 7}},
            "invalid value for option metric_tags.team: expected a string, found 7",
        ),
    ],
)
def test_wrong_option_is_named_with_what_was_found_and_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Connector.from_dict({**CASSANDRA, **change})

    assert message in str(caught.value)


def test_missing_name_is_said() -> None:
    with pytest.raises(ConfigurationError, match="option name is missing"):
        Connector.from_dict({"source": {"type": "mongodb"}})


def test_missing_file_and_broken_yaml_are_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")

    with pytest.raises(ConfigurationError, match=r"connector file .* does not exist"):
        load_connector(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="is not valid YAML"):
        load_connector(broken)


@pytest.mark.parametrize("text", ["*hunter2", "!hunter2", "'hunter2' rest", "@hunter2"])
def test_a_connector_file_that_is_no_yaml_shows_no_password(tmp_path: Path, text: str) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"name: shop\nsource:\n  encryption: {{keystore_password: {text}}}\n")
    with pytest.raises(
        ConfigurationError, match="is not valid YAML: found a syntax error in line 3"
    ) as raised:
        load_connector(broken)
    assert "hunter2" not in str(raised.value)


def encrypted(**encryption: Any) -> Connector:
    source = {**CASSANDRA["source"], "encryption": {"keystore": "/k.jceks", **encryption}}
    return Connector.from_dict({**CASSANDRA, "source": source})


def test_secrets_are_shown_nowhere_and_leave_the_declaration_for_a_spec() -> None:
    connector = encrypted(keystore_password="hunter2", key_password="${env:KEY_WORD}")

    assert "hunter2" not in f"{connector!r} {connector}"
    assert Connector.from_dict(connector.to_dict()) == connector
    plain, secrets = connector.split_secrets()
    assert secrets == [(("source", "encryption", "keystore_password"), "hunter2")]
    assert Connector.from_dict(plain) == encrypted(key_password="${env:KEY_WORD}")
    assert "hunter2" not in str(plain)
    assert Connector.with_secrets(plain, secrets) == connector


def test_a_secret_of_the_wrong_kind_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"source\.encryption\.key_password: expected") as raised:
        encrypted(key_password=824680)
    assert "824680" not in str(raised.value)


def test_static_columns_are_cassandras_alone() -> None:
    lake = {"catalog": "lake", "static_columns": "table"}
    assert Connector.from_dict({**CASSANDRA, "lake": lake}).lake.static_columns == "table"
    with pytest.raises(ConfigurationError, match=r"lake\.static_columns is not supported for source"):
        Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}, "lake": lake})
    with pytest.raises(ConfigurationError, match=r"one of rows, table"):
        Connector.from_dict({**CASSANDRA, "lake": {"static_columns": "view"}})


@pytest.mark.parametrize(
    "other",
    [
        {"snapshot": {"on_lost_position": "continue"}},
        {"source": {"stream": {"oversize": "skip", "skip_threshold_bytes": 1}}},
        {"source": {"stream": {"update_descriptions": False}}},
    ],
)
def test_updates_without_documents_must_all_come(other: dict[str, Any]) -> None:
    source = {"type": "mongodb", "full_document": "none"}
    assert Connector.from_dict({"name": "shop", "source": source})
    with pytest.raises(ConfigurationError, match="full_document"):
        Connector.from_dict({"name": "shop", **other, "source": {**source, **other.get("source", {})}})
