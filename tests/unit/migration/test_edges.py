"""Whatever the value of a property is, it is imported, or the error names the property."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.datastax import RULES as DATASTAX
from airflow_cdc_provider.migration.debezium import transforms
from airflow_cdc_provider.migration.debezium.mongodb_transforms import OUTBOX, UNWRAP
from airflow_cdc_provider.migration.debezium.properties import (
    RULES,
    from_debezium,
    import_properties,
    start_draft,
)
from airflow_cdc_provider.migration.debezium.review import review
from airflow_cdc_provider.migration.rules import Draft, find_rule
from tests.unit.migration.documented import LEAST

EDGES = ["", "0", "-1", "1", "9" * 20, "9" * 5000, "\N{SUPERSCRIPT TWO}", "1.5", "TRUE", "CURRENT", "x" * 300]
EDGES += [
    "[",
    "[1]",
    "{}",
    "$",
    "p.q",
    "a:b",
    "a,b",
    "http://a,http://b",
    "\x00",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
]

RELATED = {"max.queue.size": "max.batch.size", "topic.prefix": "name"}
"""Properties whose rules read another one, too."""


def names(rules: Mapping[str, object]) -> list[str]:
    """The properties of rules, one for each that is a prefix."""
    return [f"{rule[:-1]}x.y" if rule.endswith("*") else rule for rule in rules if rule != "connector.class"]


@pytest.mark.parametrize("kind", RULES)
def test_a_property_with_any_value_is_imported_or_named(kind: str) -> None:
    for edge in EDGES:
        draft = start_draft({**dict.fromkeys(names(RULES[kind]), edge), **LEAST[kind]})
        for name, problem in import_properties(draft):
            named = {name, RELATED.get(name, name)}
            assert problem is None or any(part in str(problem) for part in named), (name, edge)


def test_a_setting_of_datastax_with_any_value_is_imported_or_named() -> None:
    for name in names(DATASTAX):
        for edge in EDGES:
            try:
                Draft("cassandra", {name: edge}).apply(find_rule(name, DATASTAX), name, edge)
            except ConfigurationError as error:
                assert name in str(error), (name, edge)


@pytest.mark.parametrize("kind", ["mongodb", "vitess"])
def test_a_setting_of_a_transform_with_any_value_is_imported_or_named(kind: str) -> None:
    package = "io.debezium.connector.mongodb.transforms."
    settings = {kind: rules for kind, (_, rules) in transforms._WHOLE.items()}
    settings |= {f"{transforms.CONNECT}{name}$Value": rules for name, (_, rules) in transforms._SIDED.items()}
    if kind == "mongodb":
        settings |= {f"{package}ExtractNewDocumentState": UNWRAP, f"{package}outbox.MongoEventRouter": OUTBOX}
    else:
        settings[f"{transforms.DEBEZIUM}ExtractNewRecordState"] = transforms._UNWRAP[1]
    for java, rules in settings.items():
        for setting in names(rules):
            for edge in EDGES:
                named = {"transforms": "t", "transforms.t.type": java, f"transforms.t.{setting}": edge}
                for _, problem in import_properties(start_draft({**LEAST[kind], **named})):
                    assert problem is None or "transforms.t." in str(problem), (java, setting, edge)


@given(st.data())
def test_a_plan_has_a_row_for_each_property_or_names_those_that_contradict(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(RULES)))
    several = st.dictionaries(st.sampled_from(names(RULES[kind])), st.sampled_from(EDGES), max_size=12)
    properties = {**LEAST[kind], **data.draw(several)}
    try:
        reviewed = review(properties)
    except ConfigurationError as error:
        assert any(name in str(error) for name in properties)
        with pytest.raises(ConfigurationError):
            from_debezium(properties)
    else:
        assert [verdict.name for verdict in reviewed.verdicts] == list(properties)
        assert all(verdict.text for verdict in reviewed.verdicts)


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("mongodb", "mongodb.connect.timeout.ms", "50", "0, or at least 0.1"),
        ("scylla", "scylla.query.time.window.size", "0", "at least 0.001"),
        ("mongodb", "incremental.snapshot.chunk.size", "0", "at least 1"),
        ("cassandra", "heartbeat.interval.ms", "9" * 18, "at most"),
    ],
)
def test_an_imported_value_that_the_declaration_refuses_names_the_property(
    kind: str, name: str, value: str, expected: str
) -> None:
    properties = {**LEAST[kind], name: value}
    with pytest.raises(ConfigurationError, match=f"property {name} can't be imported: .*{expected}"):
        from_debezium(properties)
    (verdict,) = review(properties).of("unsupported")
    assert (verdict.name, expected in verdict.text) == (name, True)


def test_a_combination_that_the_declaration_refuses_names_the_properties() -> None:
    properties = {**LEAST["mongodb"], "max.batch.size": "200000"}
    with pytest.raises(ConfigurationError, match=r"read_ahead_events is too small.*from max\.batch\.size$"):
        from_debezium(properties)
    with pytest.raises(ConfigurationError, match=r"from vitess\.offset\.storage\.per\.task$"):
        review({**LEAST["vitess"], "vitess.offset.storage.per.task": "true"})
