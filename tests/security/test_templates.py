"""Who triggers a DAG chooses values of templates, but can't refer to the secrets of the machine by them."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowException
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from airflow_cdc_provider import masking
from airflow_cdc_provider.connector.declaration import to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.options import Rendered, rendered, unwrapped, value_of
from airflow_cdc_provider.tasks.parameters import to_mapping

REFERENCES = ("${env:WORKER_SECRET}", "${file:/run/secrets/key}")
GIVEN = "{{ params.given }}"
PLACES: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "name": lambda text: {"name": text},
    "tables": lambda text: {"tables": text},
    "a table": lambda text: {"tables": [text]},
    "namespace": lambda text: {"lake": {"namespace": text}},
    "lake": lambda text: {"lake": text},
    "a number": lambda text: {"guardrail": {"max_tables": text}},
    "a flag": lambda text: {"lag_statistics": text},
    "metric_tags": lambda text: {"metric_tags": {"team": text}},
    "catalog_options": lambda text: {"lake": {"catalog_options": text}},
    "a public catalog option": lambda text: {"lake": {"catalog_options": {"warehouse": text}}},
    "a catalog option": lambda text: {"lake": {"catalog_options": {"credential": text}}},
    "source": lambda text: {"source": text},
    "source.type": lambda text: {"source": {"type": text}},
    "a source's option": lambda text: {"source": {"type": "mongodb", "conn_id": text}},
    "a keystore": lambda text: {
        "source": {"type": "cassandra", "encryption": {"keystore": "/k", "keystore_password": text}}
    },
    "transforms": lambda text: {"publish": {"transforms": text}},
    "a salt": lambda text: {
        "publish": {"transforms": [{"type": "hash", "fields": ["after.a"], "salt": text}]}
    },
    "settings": lambda text: {"snapshot": {"custom_settings": {"a": text}}},
    "nested settings": lambda text: {"signals": {"settings": {"a": [{"b": text}]}}},
}


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_SECRET", "Fernetkey0123abc")


def declared(**values: Any) -> dict[str, Any]:
    return {"name": "shop", "source": {"type": "mongodb"}, **values}


def task(connector: Any, given_value: Any = None, *, native: bool = False, mapped: bool = False) -> Any:
    with DAG("shop", schedule=None, render_template_as_native_obj=native):
        if mapped:
            made: Any = CdcSyncOperator.partial(task_id="task").expand(connector=connector)
        else:
            made = CdcSyncOperator(task_id="task", connector=connector)
    instance = SimpleNamespace(dag_id="shop", run_id="run", task_id="task", map_index=0 if mapped else -1)
    context = {"params": {"given": given_value}, "ti": instance, "dag": made.get_dag(), "task": made}
    context["dag_run"] = SimpleNamespace(conf={})
    made.render_template_fields(context)
    return context["task"]


def escaped(value: Any) -> str:
    return json.dumps(value).replace("$", "\\u0024")


def refused(connector: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_connector(connector)
    assert "what a template, a parameter or a task gives" in str(caught.value)
    assert "Fernetkey" not in str(caught.value)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_what_a_template_gives_is_no_reference(place: str, native: bool) -> None:
    """Be it the text of an option, a part of it, or in JSON or a value that the template gives."""
    at = PLACES[place]
    for reference in REFERENCES:
        refused(task(declared(**at(GIVEN)), reference, native=native).connector)
        refused(task(declared(**at("${env:WORKER_{{ params.given }}}")), "SECRET", native=native).connector)
        whole = declared(**at(reference))
        refused(task(GIVEN, escaped(whole), native=native).connector)
        refused(task(GIVEN, whole, native=native).connector)


@pytest.mark.parametrize("native", [False, True])
def test_a_list_or_a_mapping_that_a_template_gives_has_no_reference(native: bool) -> None:
    for reference in REFERENCES:
        for option, value in (
            ("tables", [reference]),
            ("lake", {"namespace": reference}),
            ("metric_tags", {"a": reference}),
            ("source", {"type": "mongodb", "conn_id": reference}),
            ("snapshot", {"custom_settings": {"a": reference}}),
        ):
            for given_value in (value, json.dumps(value), escaped(value), repr(value)):
                refused(task(declared(**{option: GIVEN}), given_value, native=native).connector)
        for text in (reference, [reference]):
            with pytest.raises(ConfigurationError, match="template"):
                to_mapping("conf", rendered({"a": text}))
        with pytest.raises(ConfigurationError, match="template"):
            to_mapping("conf", Rendered(escaped({"a": reference})))


def test_all_parameters_as_a_declaration_have_no_reference() -> None:
    params = ParamsDict({**declared(), "lake": {"namespace": REFERENCES[0]}})
    refused(task("{{ params.given }}", params, native=True).connector)
    refused(task(declared(lake=GIVEN), ParamsDict({"namespace": REFERENCES[0]}), native=True).connector)


@pytest.mark.parametrize("mapped", [False, True])
def test_what_a_parameter_gives_at_run_time_is_no_reference(mapped: bool) -> None:
    class Given:
        """As a parameter of a DAG or the result of a task is in Airflow."""

        def __init__(self, value: Any) -> None:
            self.value = value

        def resolve(self, context: Any) -> Any:
            return self.value

    whole = declared(lake={"namespace": REFERENCES[0]})
    if not mapped:
        refused(task(Given(whole)).connector)
        refused(task(declared(lake={"namespace": Given(REFERENCES[0])})).connector)
        assert to_connector(task(declared(tables=[Given("a.b")])).connector).tables == ("a.b",)
        return
    own = CdcSyncOperator.partial(task_id="x", dag=DAG("d", schedule=None)).expand(connector=[declared()])
    made: Any = own.unmap({"connector": whole})
    made._do_render_template_fields(
        made, ("connector",), {}, made.get_template_env(), seen_oids={id(made.connector)}
    )
    refused(made.connector)


@pytest.mark.parametrize("listed", [False, True])
def test_what_a_task_gives_to_expand_kwargs_is_no_reference(listed: bool) -> None:
    with DAG("shop", schedule=None):
        upstream: Any = EmptyOperator(task_id="upstream").output
        given_value = [upstream] if listed else upstream
        mapped = CdcSyncOperator.partial(task_id="task").expand_kwargs(given_value)
    made: Any = mapped.unmap({"connector": declared(lake={"namespace": REFERENCES[0]})})
    made._do_render_template_fields(made, ("connector",), {}, made.get_template_env(), seen_oids=set())
    refused(made.connector)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_references_of_the_author_are_what_they_were(native: bool, mapped: bool) -> None:
    whole = declared(
        tables=["{{ 'a' }}.b"],
        lake={"namespace": "${env:WORKER_SECRET}", "catalog_options": {"credential": REFERENCES[1]}},
    )
    connector = to_connector(task([whole] if mapped else whole, native=native, mapped=mapped).connector)
    assert connector.tables == ("a.b",)
    assert connector.namespace == "Fernetkey0123abc"
    assert connector.lake.catalog_options == {"credential": REFERENCES[1]}


def values_of(value: Any) -> list[Any]:
    """Return the values in plain data: names refer to nothing."""
    if isinstance(value, dict):
        return [one for member in value.values() for one in values_of(member)]
    return [one for member in value for one in values_of(member)] if isinstance(value, list) else [value]


PLAIN = st.recursive(
    st.sampled_from(REFERENCES) | st.text(max_size=5) | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(REFERENCES) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(PLAIN)
def test_no_reference_gets_out_of_what_a_template_gives(value: Any) -> None:
    has = any(reference in repr(values_of(value)) for reference in REFERENCES)
    for one in (rendered(value), value_of(Rendered(json.dumps(value))), value_of(Rendered(repr(value)))):
        if has:
            with pytest.raises(ConfigurationError, match="template"):
                unwrapped(one)
        else:
            assert unwrapped(one) == value or isinstance(value, str)


def test_names_of_any_kind_are_kept() -> None:
    value = {(1, 2): "a", 3: ["b"], None: "c"}
    assert unwrapped(rendered(value)) == unwrapped(value_of(Rendered(repr(value)))) == value


@pytest.mark.parametrize("given_value", ["${env:HOME}", "x" * 200_000, '"', {"a": 1}])
@pytest.mark.parametrize("as_text", [False, True])
def test_secrets_of_the_author_stay_masked_whatever_is_given(given_value: Any, as_text: bool) -> None:
    planted = "sid=Qq7-plantedCookie9"
    catalog = {"type": "rest", "warehouse": GIVEN, "header.X-Sid": planted}
    whole: Any = declared(lake={"catalog_options": catalog}, tables=[GIVEN])
    conf: Any = {"spark.hadoop.x": GIVEN, "spark.hadoop.x.token": "Qq8-plantedToken9"}
    if as_text:
        whole, conf = json.dumps(whole), json.dumps(conf)
    masking.forget()
    with DAG("shop", schedule=None):
        made: Any = CdcSyncOperator(task_id="task", connector=whole, conf=conf)
    with contextlib.suppress(AirflowException):
        made.render_template_fields({"params": {"given": given_value}, "task": made})
    shown = masking.masked(f"{whole} {conf} {made.connector} {made.conf}")
    assert "plantedCookie" not in shown
    assert "plantedToken" not in shown


def test_a_template_that_fails_shows_no_secret() -> None:
    """Airflow logs the template."""
    masking.forget()
    whole = declared(lake={"catalog_options": {"type": "rest", "header.X-Sid": "Qq7-plantedCookie9"}})
    with pytest.raises(UndefinedError):
        task({**whole, "tables": ["{{ dag_run.conf.a.b }}"]})
    assert "plantedCookie" not in masking.masked(str(whole))


def test_a_path_that_a_template_gives_shows_nothing_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.env"
    path.write_text("FERNET_KEY=Zm9vYmFyc2VjcmV0MTIz")
    with pytest.raises(ConfigurationError) as caught:
        to_connector(str(path))
    assert "Zm9v" not in str(caught.value)
