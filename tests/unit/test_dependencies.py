"""A plain installation runs all sources, mirrors and Kafka; for the rest an error names the extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, from_extra
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = ROOT / "airflow_cdc_provider"
OWN = frozenset({"airflow_cdc_provider", *sys.stdlib_module_names})
OF_OTHERS = {
    "airflow.providers.openlineage": "Airflow calls for lineage only if the provider is installed",
    "airflow.providers.common.compat": "a requirement of Airflow's Spark provider",
    "airflow.sdk": "part of Airflow",
    "botocore": "a requirement of boto3, which extra s3 brings",
    "bson": "part of pymongo",
    "paramiko": "a requirement of the SSH provider, which extra sftp brings",
    "psutil": "a requirement of Airflow",
    "py4j": "a requirement of PySpark",
}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~ ]", one)[0].replace("_", "-").lower() for one in requirements}


BASE = names(PROJECT["dependencies"])
EXTRAS = {extra: names(given) for extra, given in PROJECT["optional-dependencies"].items()}


def imports(file: Path) -> list[tuple[str, str]]:
    """List what a file imports from other packages, with the extra that it names for it."""
    found = []
    tree = ast.parse(file.read_text())
    extras = {
        id(inner): ast.literal_eval(call.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for call in [node.items[0].context_expr]
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "from_extra"
        for inner in ast.walk(node)
    }
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        else:
            continue
        found += [(one, extras.get(id(node), "")) for one in modules if one.partition(".")[0] not in OWN]
    return found


def test_every_import_is_a_dependency_or_names_the_extra_that_brings_it() -> None:
    distributions = packages_distributions()
    left = []
    for file in set(PACKAGE.rglob("*.py")) - set((PACKAGE / "transfer").rglob("*.py")):  # run on nodes, alone
        for module, extra in imports(file):
            if any(module == one or module.startswith(f"{one}.") for one in OF_OTHERS):
                continue
            provider = re.match(r"airflow\.providers\.((?:apache\.|common\.)?\w+)", module)
            owners = (
                {f"apache-airflow-providers-{provider[1].replace('.', '-')}"}
                if provider
                else {one.lower().replace("_", "-") for one in distributions[module.partition(".")[0]]}
            )
            if not owners & (BASE | EXTRAS.get(extra, set())):
                left.append((str(file.relative_to(ROOT)), module, extra, owners))
    assert left == []


def test_a_plain_installation_brings_what_users_name_first() -> None:
    assert {
        "apache-airflow",
        "apache-airflow-providers-apache-spark",
        "cassandra-driver",
        "confluent-kafka",
        "grpcio",
        "pymongo",
    } <= BASE


def test_the_extra_all_has_every_extra_of_users() -> None:
    listed = re.search(r"\[(.*)\]", PROJECT["optional-dependencies"]["all"][0])
    assert listed is not None
    assert set(listed[1].split(",")) == set(EXTRAS) - {"all", "dev"}


def test_docs_name_extras_that_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]
    named = {
        extra.strip()
        for page in pages
        for given in re.findall(r"airflow-cdc-provider\[([\w, ]+)\]", page.read_text())
        for extra in given.split(",")
    }
    assert named <= set(EXTRAS)


def test_a_missing_library_is_reported_with_its_extra() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"nowhere is not installed.*pip install .*\[s3\]"),
        from_extra("s3"),
    ):
        raise ImportError(name="nowhere")
