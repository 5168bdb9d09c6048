"""What the Makefile, the tools and the server kit download has a known hash, or a signature of Debian."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit import jars, vitess_programs
from server_kit.cache import cache_folder, require_hash
from server_kit.mongodb import _WHEELS

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", *(f"tools/{path.name}" for path in (ROOT / "tools").glob("*.lock"))]
DOWNLOADS = re.compile(
    "|".join(
        (
            r"\bpip[\"', ]+(install|download|wheel)\b",
            r"\buvx\b|\buv[\"', ]+(run|tool|sync|add)\b",
            r"\b(curl|wget|npx|npm|mvn|urlretrieve|dependency:get)\b",
            r"\bgit[\"', ]+clone\b",
            r"\bgo[\"', ]+(get|install|mod|run|build)\b",
            r"\bapt(-get)?[\"', ]+install\b",
            r"\b(docker|podman|cargo|gem|conda|mamba|poetry|pipx)[\"', ]+(pull|install|run|add)\b",
        )
    )
)
VERIFIED = {
    "Makefile": "installs Debian's packages, by apt",
    "tools/install.sh": "by --require-hashes, below; Debian's packages by apt",
    "tools/pinned.py": "by --require-hashes, below",
    "server_kit/mongodb.py": "by --require-hashes, below",
    "server_kit/vitess_programs.py": "by the module's hash, below",
    "server_kit/jars.py": "by jars.sha256, below",
    "server_kit/programs.py": "names Debian's packages in messages",
    "tests/contract/lake/sessions.py": "by jars.sha256, below",
    "tests/contract/lake/test_writers.py": "names Maven in a message",
    "tests/integration/test_server_kit.py": "names Maven, which is missing",
}
"""The files that download, and how that is verified."""


def sources() -> list[Path]:
    folders = ("tools", "server_kit", "demo", "benchmarks", "tests", "packaging", ".ci")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    code = [path for path in found if path.suffix in (".py", ".sh", "") and "tests/fixtures" not in str(path)]
    runs = [path for path in code if not path.is_relative_to(ROOT / "tests/unit")]
    return [ROOT / "Makefile", *(path for path in runs if path != Path(__file__))]


def test_no_other_file_downloads_anything() -> None:
    found = {str(path.relative_to(ROOT)) for path in sources() if DOWNLOADS.search(path.read_text())}
    assert found - VERIFIED.keys() == set()


@pytest.mark.parametrize("name", LOCKS)
def test_each_package_is_pinned_with_its_hash(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[A-Za-z0-9._\[\]-]+==\S+ ", line), line
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), line
        assert "://" not in line


def test_what_builds_packages_is_pinned_too() -> None:
    locked = (ROOT / "tools/install.lock").read_text()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert build
    for one in [*build, "uv==", "setuptools=="]:
        assert re.search(rf"^{re.escape(one)}", locked, re.MULTILINE), one


def test_each_install_requires_hashes_and_no_isolated_build() -> None:
    script = (ROOT / "tools/install.sh").read_text()
    assert "pip install -q --require-hashes -r tools/install.lock\n" in script
    assert "everything=(--no-build-isolation --require-hashes -r requirements.lock)\n" in script
    assert "itself=(--no-build-isolation --no-deps -e .)\n" in script
    commands = script.replace("&&", "\n").replace("||", "\n")
    named = re.findall(r"(?:-m pip install|with_uv(?: --offline)?) (.*)", commands)
    for arguments in named:
        assert re.match(r'(-q )?("\$\{(everything|itself)\[@\]\}"|--require-hashes )', arguments), arguments
    by_pip = ("tools/pinned.py", "server_kit/mongodb.py")
    for name in by_pip:
        for command in re.split(r"subprocess\.run|run_program", (ROOT / name).read_text()):
            assert not re.search(r"\"(install|download)\"", command) or "--require-hashes" in command, name
    other_place = re.compile(r"--(extra-)?index-url|--trusted-host|--find-links|--no-verify")
    for path in sources():
        assert not other_place.search(path.read_text().replace("--no-emit-index-url", "")), path


def test_debians_packages_keep_their_signatures() -> None:
    unsigned = re.compile(r"(?i)allow-?unauthenticated|allow-?insecure-?repos|trusted=yes|downgradetoinsec")
    for path in sources():
        assert not unsigned.search(path.read_text()), path
    assert "signed-by=" in (ROOT / "server_kit/debian.py").read_text()


def test_a_jar_that_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    recorded = jars._recorded()
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in recorded.values())
    for name in (f"cassandra-all-{jars.CASSANDRA_VERSION}.jar", "another-1.0.jar"):
        (tmp_path / name).write_bytes(b"PK\x03\x04")
        with pytest.raises(ConfigurationError, match="is not the one that is expected"):
            jars.require_recorded(tmp_path / name)
    names = (
        f"iceberg-spark-runtime-4.1_2.13-{jars.ICEBERG_VERSION}.jar",
        f"hadoop-bare-naked-local-fs-{jars.LOCAL_FILES_VERSION}.jar",
        f"kafka_2.13-{jars.KAFKA_VERSION}.jar",
        f"pulsar-broker-{jars.PULSAR_VERSION}.jar",
        f"apicurio-registry-app-{jars.REGISTRY_VERSION}-all.tar.gz",
        f"debezium-connector-cassandra-5-{jars.DEBEZIUM_VERSION}.jar",
        f"debezium-connector-mongodb-{jars.DEBEZIUM_MONGODB_VERSION}.jar",
        f"debezium-connector-vitess-{jars.DEBEZIUM_VITESS_VERSION}.jar",
        f"debezium-connector-postgres-{jars.DEBEZIUM_RELATIONAL_VERSION}.jar",
    )
    assert set(names) <= recorded.keys()


def test_cached_jars_are_the_recorded_ones() -> None:
    for folder in ("spark-jars", "local-files", "kafka", "cassandra"):
        for path in (cache_folder() / folder).glob("*/*.jar"):
            jars.require_recorded(path)


def test_vitess_is_built_from_the_recorded_module() -> None:
    known = vitess_programs._SUMS[vitess_programs.DEFAULT_VERSION]
    assert re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", known)
    require_hash("it", known, known)
    for other in (known.lower(), "", "h1:" + "A" * 43 + "="):
        with pytest.raises(ConfigurationError):
            require_hash("it", other, known)
    with pytest.raises(ConfigurationError, match="expected a hash that is recorded"):
        require_hash("it", known, None)
    assert '"GOFLAGS": "-mod=readonly"' in (ROOT / "server_kit/vitess_programs.py").read_text()


def test_each_mongodb_has_its_hash() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{64}", wheel.sha256) for wheel in _WHEELS.values())
