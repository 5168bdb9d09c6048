"""DAGs with ``render_template_as_native_obj``, where Airflow turns a text like a literal into its value."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import inspect
import itertools
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider.connector.declaration import to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.operators.cassandra import CassandraTableCdcOperator
from airflow_cdc_provider.operators.signal import CdcSignalOperator
from airflow_cdc_provider.operators.stages import CdcOffsetsOperator, CdcSnapshotOperator, CdcSyncOperator
from airflow_cdc_provider.operators.topics import CdcReplayOperator
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from airflow_cdc_provider.sensors.cassandra import CdcRawSpaceSensor
from airflow_cdc_provider.sensors.snapshots import CdcSnapshotSensor
from airflow_cdc_provider.sensors.topics import CdcConsumerLagSensor
from airflow_cdc_provider.tasks.parameters import to_mapping, to_tables
from tests.contract.provider_classes import OPERATORS, make
from tests.unit.fake_spark import DECLARATION, FakeSpark

LITERALS = (
    "2024",
    "1.10",
    "1e3",
    "True",
    "None",
    "0x10",
    "1_000",
    "007",
    "[1, 2]",
    "'x'",
    "-5",
    "(1,)",
    "{}",
    "1+2j",
    "b'x'",
    "1 # one",
    " 5",
    "...",
)
TEXTS = st.sampled_from(LITERALS) | st.text(max_size=6)
FLAG = "render_template_as_native_obj"
GIVEN = "{{ params.given }}"


def rendered(kind: Any, native: bool = True, params: Any = None, **arguments: Any) -> Any:
    """Return a task whose templates are rendered, as before its execution."""
    with DAG("shop", schedule=None, render_template_as_native_obj=native):
        task = kind(task_id="task", **{"connector": DECLARATION, **arguments})
    return render(task, params)


def render(task: Any, params: Any, map_index: int = -1) -> Any:
    instance = SimpleNamespace(dag_id="shop", run_id="run", task_id="task", map_index=map_index)
    run = SimpleNamespace(conf=params)
    context = {"params": params or {}, "ti": instance, "dag": task.get_dag(), "dag_run": run, "task": task}
    task.render_template_fields(context)
    return context["task"]


def declared(**publish: Any) -> dict[str, Any]:
    return {**DECLARATION, "name": publish.pop("name", "shop"), "publish": publish}


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_the_flag_changes_no_text(kind: Any) -> None:
    for native, text in itertools.product((False, True), LITERALS[:7]):
        with DAG("shop", schedule=None, render_template_as_native_obj=native):
            task = make(kind)
        for field in kind.template_fields:
            setattr(task, field, GIVEN)
        render(task, {"given": text})
        assert {getattr(task, field) for field in kind.template_fields} == {text}


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("kind", "fixed", "field"),
    [
        (CdcSyncOperator, {"connector": DECLARATION}, "tables"),
        (CdcSignalOperator, {"connector": DECLARATION, "signal": GIVEN}, "signal_id"),
        (CdcSnapshotSensor, {"connector": DECLARATION}, "since"),
    ],
)
def test_mapped_tasks_are_rendered_likewise(native: bool, kind: Any, fixed: Any, field: str) -> None:
    with DAG("shop", schedule=None, render_template_as_native_obj=native):
        mapped = kind.partial(task_id="mapped", **fixed).expand(**{field: ["a", GIVEN]})
    task = render(mapped, {"given": "1.10"}, 1)
    assert getattr(task, field) == "1.10"


@pytest.mark.parametrize("text", LITERALS)
def test_a_text_without_a_template_stays_a_text(text: str) -> None:
    arguments: dict[str, Any] = {"cdc_raw": "/raw", "host_id": text, "landing": text}
    task = rendered(CommitLogTransferOperator, **arguments)
    assert (task.host_id, task.landing) == (text, text)
    replay = rendered(CdcReplayOperator, connector=declared(version=text), topic_prefix=text, since=text)
    assert to_connector(replay.connector).publish.version == text
    assert (replay.topic_prefix, replay.since) == (text, text)


@given(text=TEXTS)
@example(text="2024")
def test_a_text_is_itself_where_text_is_declared(text: str) -> None:
    params = {"given": text}
    task = rendered(CdcConsumerLagSensor, params=params, group_id=GIVEN, max_lag="3")
    assert type(task.group_id) is str
    assert task.group_id == text
    declaration = declared(version=GIVEN, task_id=GIVEN)
    snapshot = rendered(CdcSnapshotOperator, params=params, connector=declaration, tables=[GIVEN])
    publish = to_connector(snapshot.connector).publish
    assert (publish.version, publish.task_id) == (text, text)
    assert {type(publish.version), type(publish.task_id)} == {str}
    assert to_tables(snapshot.tables) == ((text.strip(),) if text.strip() else ())


@given(number=st.integers() | st.floats(allow_nan=False) | st.booleans())
def test_a_value_is_its_text_where_text_is_declared(number: float) -> None:
    params = {"given": number}
    assert rendered(CdcSignalOperator, params=params, signal="log", signal_id=GIVEN).signal_id == str(number)
    task = rendered(CdcSyncOperator, params=params, connector=declared(version=GIVEN))
    assert to_connector(task.connector).publish.version == str(number)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("number", [40, "40"])
def test_a_number_is_one_where_a_number_is_declared(native: bool, number: Any) -> None:
    params = {"given": number, "list": ["a.b"]}
    task = rendered(CdcOffsetsOperator, native, params, action="publish", batch=GIVEN)
    assert task.options() == {"action": "publish", "batch": 40}
    declaration = {
        **DECLARATION,
        "guardrail": {"max_tables": GIVEN},
        "tables": "{{ params.list }}",
        "lake": {"format_version": "{{ 1 + 2 }}", "retention_seconds": GIVEN, "single_writer": "{{ 1 < 2 }}"},
    }
    connector = to_connector(rendered(CdcSyncOperator, native, params, connector=declaration).connector)
    assert connector.guardrail.max_tables == connector.lake.retention_seconds == 40
    assert (connector.tables, connector.lake.format_version, connector.lake.single_writer) == (
        ("a.b",),
        3,
        True,
    )


def test_what_an_expression_gave_is_what_free_form_options_have() -> None:
    pipeline = [{"$match": {"year": "{{ params.year }}", "name": "{{ params.name }}"}}]
    source = {"type": "mongodb", "conn_id": "m", "stream": {"pipeline": pipeline}}
    params = {"year": 2024, "name": "2024"}
    task = rendered(CdcSyncOperator, params=params, connector={"name": "m", "source": source})
    options: Any = to_connector(task.connector).source
    assert options.stream.pipeline == ({"$match": {"year": 2024, "name": "2024"}},)
    assert to_mapping("offset", task.render_template({"a": ["{{ params.year }}"]}, {"params": params})) == {
        "a": [2024]
    }


def test_every_template_field_that_an_operator_or_sensor_declares_as_text_is_one() -> None:
    found = 0
    for kind in OPERATORS:
        hints = {field: hint_of(kind, field) for field in kind.template_fields}
        for field in (field for field, hint in hints.items() if hint in ("str", "str | None")):
            task = make(kind, render_template_as_native_obj=True)
            setattr(task, field, GIVEN)
            for name in set(kind.template_fields) - {field}:
                setattr(task, name, None)
            with pytest.raises(AirflowFailException, match=rf"invalid value for {field}: .*{FLAG}"):
                render(task, {"given": ["a"]})
            found += 1
    assert found > 100


def hint_of(kind: Any, field: str) -> Any:
    """Return the annotation of an argument in the first class that has it."""
    parameters = (inspect.signature(base).parameters.get(field) for base in kind.__mro__[:-1])
    return next(filter(None, parameters)).annotation


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, [["a.b"]], [None], [True]])
def test_a_value_that_has_no_text_is_refused_with_the_name_of_the_flag(value: Any) -> None:
    params = {"given": value}
    with pytest.raises(AirflowFailException, match=rf"invalid value for signal_id: .*{FLAG}"):
        rendered(CdcSignalOperator, params=params, signal="log", signal_id=GIVEN)
    task = rendered(CdcSnapshotOperator, params=params, connector=declared(version=GIVEN), tables=GIVEN)
    with pytest.raises(ConfigurationError, match=rf"option publish\.version: .*{FLAG}"):
        to_connector(task.connector)
    if value != [1, 2]:  # names of a database may be numbers
        with pytest.raises(ConfigurationError, match=rf"invalid value for tables: .*{FLAG}"):
            to_tables(task.tables)


@pytest.mark.parametrize("native", [False, True])
def test_lists_mappings_and_null_are_accepted_in_both_forms(native: bool) -> None:
    params = {"tables": ["shop.orders", "shop.items"], "data": {"type": "incremental"}, "none": None}
    params |= {"declaration": DECLARATION}
    task = rendered(
        CdcSignalOperator,
        native,
        params,
        connector="{{ params.declaration }}",
        signal="execute-snapshot",
        tables="{{ params.tables }}",
        data="{{ params.data }}",
        signal_id="{{ params.none or '' }}",
    )
    assert to_connector(task.connector) == to_connector(DECLARATION)
    assert to_tables(task.tables) == ("shop.orders", "shop.items")
    assert to_mapping("data", task.data) == {"type": "incremental"}
    assert not task.signal_id
    for nothing in ("{{ none or '' }}", "{{ none }}"):
        assert to_tables(rendered(CdcSnapshotOperator, native, tables=nothing).tables) == ()
        space = rendered(CdcRawSpaceSensor, native, cdc_raw="/raw", max_used_bytes=nothing)
        assert space.trigger({}).max_used_bytes is None


@pytest.mark.parametrize("native", [False, True])
def test_sensors_take_templates_of_times_and_numbers(native: bool) -> None:
    at = datetime(2026, 11, 23, 7, tzinfo=UTC)
    task = rendered(CdcSnapshotSensor, native, {"given": at}, since=GIVEN)
    assert task.trigger({}).since == at.timestamp()
    for wrong in ("x", [1], True, -1):
        space = rendered(CdcRawSpaceSensor, native, {"given": wrong}, cdc_raw="/raw", max_used_ratio=GIVEN)
        with pytest.raises(ConfigurationError, match="invalid value for max_used_ratio: expected a number"):
            space.trigger({})
    batch = rendered(CdcOffsetsOperator, native, {"given": 4.7}, action="publish", batch=GIVEN)
    with pytest.raises(ConfigurationError, match="invalid value for batch: expected an integer"):
        batch.options()


def test_other_delimiters_of_templates_are_rendered() -> None:
    with DAG("shop", schedule=None, jinja_environment_kwargs={"variable_start_string": "[["}):
        task = CdcSnapshotOperator(task_id="task", connector=DECLARATION, tables="[[ params.given }}")
    assert render(task, {"given": "a.b"}).tables == "a.b"


@pytest.mark.parametrize("native", [False, True])
def test_arguments_of_spark_are_templates_too(
    native: bool, spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.airflow_context import TaskContext

    params = {"conf": {"spark.a": 1.5, "spark.b": True}, "version": "1.10", "port": 8080}
    task = rendered(
        CdcSyncOperator,
        native,
        params,
        conf="{{ params.conf }}",
        packages="{{ params.version }}",
        env_vars={"PORT": "{{ params.port }}", "VERSION": "{{ params.version }}"},
    )
    task.execute(TaskContext())
    arguments = spark_submit.seen["arguments"]
    assert {"spark.a=1.5", "spark.b=True", "1.10"} <= set(arguments)
    assert (task.env_vars["PORT"], task.env_vars["VERSION"]) == ("8080", "1.10")


def test_a_declaration_with_templates_is_read_when_the_task_runs() -> None:
    named = {**DECLARATION, "guardrail": {"max_tables": "{{ params.n }}"}}
    task = CdcSyncOperator(task_id="task", connector=named)
    assert [outlet.name for outlet in task.outlets] == ["cdc/shop/changes", "cdc/shop/mirrors"]
    with DAG("shop", schedule=None):
        output = CdcSyncOperator(task_id="first", connector=DECLARATION).output
        later: list[Any] = [{**named, "name": GIVEN}, "{% if a %}a.yaml{% endif %}", output]
        for number, unknown in enumerate(later):
            assert CdcSyncOperator(task_id=f"sync{number}", connector=unknown).outlets == []
            assert CdcSnapshotSensor(task_id=f"sensor{number}", connector=unknown).inlets == []
    with pytest.raises(ConfigurationError, match="max_tables"):
        CdcSyncOperator(task_id="wrong", connector={**DECLARATION, "guardrail": {"max_tables": "many"}})


def test_patterns_of_tables_may_be_any_of_these() -> None:
    for tables in ('["shop.a", "shop.b"]', "['shop.a', 'shop.b']", "shop.a, shop.b", ("shop.a", "shop.b")):
        assert to_tables(rendered(CassandraTableCdcOperator, tables=tables).tables) == ("shop.a", "shop.b")
