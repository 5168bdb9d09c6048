"""Options of transforms that contradict each other are refused when they are declared."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError


def declare(**publish: Any) -> Connector:
    return Connector.from_dict({"name": "c", "source": {"type": "mongodb"}, "publish": publish})


@pytest.mark.parametrize(
    "additional",
    [
        ["a:header:id"],
        ["id:header"],
        ["a:envelope:payload"],
        ["a:envelope:x", "x:envelope"],
        ["a:header:x", "b:header:x"],
        ["a:partition", "b:partition"],
    ],
)
def test_no_field_of_an_outbox_is_placed_onto_another(additional: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="names that differ"):
        declare(outbox={"enabled": True, "additional": additional})
    declare(
        outbox={"enabled": True, "additional": ["a:header:x", "a:envelope:x", "b:header", "a:partition:x"]}
    )


@pytest.mark.parametrize(
    ("regex", "replacement"), [("(.*)", "$2"), ("(.*)", "${name}"), ("(?<name>.*)", "${nam}"), (".*", "a$1")]
)
def test_replacements_refer_to_groups_that_exist(regex: str, replacement: str) -> None:
    renamed = {"type": "rename_topic", "regex": regex, "replacement": replacement}
    logical = {"type": "logical_table", "topic_regex": regex, "topic_replacement": replacement}
    for publish in (
        {"outbox": {"enabled": True, "topic_regex": regex, "topic_replacement": replacement}},
        {"transforms": [renamed]},
        {"transforms": [logical]},
    ):
        with pytest.raises(ConfigurationError, match="refers to a group that its regular expression doesn't"):
            declare(**publish)
