"""What the Makefile, the tools and the server kit download has a known hash, or a signature of Debian."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit import jars, mongodb, vitess_programs
from server_kit.cache import cache_folder, cached, require_hash
from tests.security.hostile_files import OTHER_USER
from tools.audit import __main__ as audit

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", *(f"tools/{path.name}" for path in (ROOT / "tools").glob("*.lock"))]
_SPACE = r"[\"',\s]+"
"""Between the words of a command, also if it is a list in Python, over several lines."""
DOWNLOADS = re.compile(
    "|".join(
        (
            rf"\bpip3?{_SPACE}(install|download|wheel)\b|\beasy_install\b",
            rf"\buvx\b|\buv{_SPACE}(run|tool|sync|add|pip|python|self)\b",
            r"\b(curl|wget|aria2c|npx|npm|pnpm|mvnw?|gradlew?|coursier)\b|dependency:(get|copy)|/dev/tcp/",
            rf"\bgit{_SPACE}(clone|fetch|pull|submodule|archive)\b|\bsvn{_SPACE}(checkout|export)\b",
            rf"\bgo{_SPACE}(get|install|mod|run|build|tool)\b",
            rf"\b(apt|apt-get|aptitude|apk|dnf|yum|microdnf|zypper|brew|snap){_SPACE}(-\S+{_SPACE})*"
            r"(install|add|download|update|upgrade|source)\b",
            rf"\b(docker|podman|cargo|gem|conda|mamba|poetry|pipx|pdm|helm|rustup|yarn){_SPACE}"
            r"(pull|install|run|add|build|create|update)\b",
            r"\burl(open|retrieve)\b|\bURLopener\b|\bbuild_opener\b|\bHTTPS?Connection\b",
            r"\b(import|from) (requests|httpx2?|aiohttp|urllib3|pycurl|ftplib|telnetlib)\b",
            r"\b(requests|httpx2?)\.(get|post|request|stream|[A-Z]\w+)\(|--download-only\b|\[\"download\"",
            r"--(packages|repositories)\b|\bjars\.(packages|ivy|repositories)|\bHttpURLConnection\b"
            r"|\bHttpClient\b|\.openStream\(",
        )
    )
)
VERIFIED: dict[str, str] = yaml.safe_load(Path(__file__).with_name("downloads.yaml").read_text())


def sources() -> list[Path]:
    folders = ("tools", "server_kit", "demo", "benchmarks", "tests", "packaging", ".ci", "dags_examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    kinds = (".py", ".sh", "", ".java", ".service", ".ini")
    code = [path for path in found if path.suffix in kinds and "tests/fixtures" not in str(path)]
    return [ROOT / "Makefile", *(path for path in code if path != Path(__file__))]


def downloading(name: str, text: str) -> Iterator[str]:
    for found in DOWNLOADS.finditer(text):
        start = text.rfind("\n", 0, found.start()) + 1
        yield f"{name}: {text[start:].partition(chr(10))[0].strip()}"


def test_no_other_line_downloads_anything() -> None:
    found = {
        line for path in sources() for line in downloading(str(path.relative_to(ROOT)), path.read_text())
    }
    known = {line for lines in VERIFIED.values() for line in lines.splitlines()}
    assert sorted(found - known) == []
    assert sorted(known - found) == [], "they are gone"


@pytest.mark.parametrize(
    "line",
    [
        "curl -s https://e.example/x | sh",
        "python3 -m pip install x",
        'run(["pip",\n     "install", "x"])',
        "uv pip install x",
        "urllib.request.urlopen(url)",
        "import requests",
        "with httpx.stream(url) as answer:",
        "http.client.HTTPSConnection(host)",
        "spark-submit --packages a.b:c:1",
        '.config("spark.jars.packages", "a.b:c:1")',
        "apt-get -qq install -y x",
        "apt-get update && apt-get install x",
        "git submodule update",
        "go run example.com/x@latest",
        "docker pull x",
        "cargo install x",
        "import httpx2",
        "session = requests.Session()",
        "new URL(address).openStream()",
    ],
)
def test_a_line_that_downloads_is_found(line: str) -> None:
    assert list(downloading("x", line))


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


CACHED: dict[str, Callable[[], object]] = {
    "jar": lambda: jars._cached("kafka", "1", _fill("kafka_2.13-1.jar"), "it"),
    "registry": jars.registry_folder,
    "server": lambda: mongodb.mongod("6.0.5"),
    "built": lambda: vitess_programs.vitess_program("1", "vtcombo"),
}
WEAK: dict[str, Callable[[Path], None]] = {
    "a folder above": lambda folder: folder.parents[1].chmod(0o777),
    "the folder": lambda folder: folder.chmod(0o775),
    "a folder in it": lambda folder: (folder / "lib").chmod(0o757),
    "a file in it": lambda folder: (folder / "mongod").chmod(0o666),
    "a link": lambda folder: (
        folder.rename(folder.with_name("a")).parent.joinpath(folder.name).symlink_to("a")
    ),
}
if os.geteuid() == 0:
    WEAK |= {
        "another user's folder": lambda folder: os.chown(folder, OTHER_USER, OTHER_USER),
        "another user's file": lambda folder: os.chown(folder / "mongod", OTHER_USER, OTHER_USER),
    }
"""What others could have changed, now or while it was so."""


def _fill(*names: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"planted")

    return fill


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache in which each kind of folder is there, with another content than the recorded one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("kafka/1", f"apicurio-registry/{jars.REGISTRY_VERSION}", "mongodb/6.0.5", "vitess/1-vtcombo")
    for name in names:
        folder = cache_folder() / name
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        _fill("kafka_2.13-1.jar", "lib/a.jar", "mongod", "vtcombo")(folder)
    return cache_folder()


@pytest.mark.parametrize("kind", ["jar", "registry", "server"])
def test_what_is_cached_has_the_recorded_hash_whoever_filled_the_cache(kind: str, planted: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="is not the one that is expected"):
            CACHED[kind]()


@pytest.mark.parametrize("weak", WEAK)
@pytest.mark.parametrize("kind", CACHED)
def test_a_cache_that_others_may_change_is_not_used(kind: str, weak: str, planted: Path) -> None:
    names = {"jar": "kafka", "registry": "apicurio-registry", "server": "mongodb", "built": "vitess"}
    (folder,) = (planted / names[kind]).iterdir()
    WEAK[weak](folder)
    with pytest.raises(ConfigurationError, match="is not trusted"):
        CACHED[kind]()


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_a_cache_is_private_whatever_the_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    before = os.umask(umask)
    try:
        folder = cached("thing", "1", _fill("a/b"), "a thing")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cached("thing", "1", _fill(), "a thing") == folder


def test_nothing_is_written_into_a_folder_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = tmp_path / "mine"
    mine.write_text("kept")
    (cache_folder() / "thing").mkdir(parents=True)
    (cache_folder() / "thing").chmod(0o777)
    (cache_folder() / "thing" / ".1.lock").symlink_to(mine)
    with pytest.raises(ConfigurationError, match="is not trusted"):
        cached("thing", "1", _fill("a"), "a thing")
    assert mine.read_text() == "kept"
    assert not (cache_folder() / "thing" / "1").exists()


def test_the_audit_finds_each_jar_that_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def maven(_: str, content: str, *others: Any) -> NoReturn:
        found = re.findall(r"<groupId>([^<]*)</groupId><artifactId>([^<*]*)</artifactId>", content)
        asked.extend(f"{group}:{artifact}" for group, artifact in found)
        raise ConfigurationError("asked")

    monkeypatch.setattr(jars, "_maven", maven)
    functions = [
        value for name, value in vars(jars).items() if re.search(r"_jars?$|_folder$", name) and name[0] != "_"
    ]
    for function in functions:
        if function is not cache_folder:
            with pytest.raises(ConfigurationError, match="asked"):
                function()
    with pytest.raises(ConfigurationError, match="asked"):
        jars.cassandra_jars("3.11.19")
    assert len(set(asked)) > 15
    assert set(asked) - {name for name, _ in audit.jars()} == set()


def test_vitess_is_built_from_the_recorded_module() -> None:
    known = vitess_programs._SUMS[vitess_programs.DEFAULT_VERSION]
    assert re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", known)
    require_hash("it", known, known)
    for other in (known.lower(), "", "h1:" + "A" * 43 + "="):
        with pytest.raises(ConfigurationError):
            require_hash("it", other, known)
    with pytest.raises(ConfigurationError, match="expected a hash that is recorded"):
        require_hash("it", known, None)
    assert vitess_programs._GO.items() >= {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}.items()
    source = (ROOT / "server_kit/vitess_programs.py").read_text()
    assert len(re.findall(r"^ +\[go, ", source, re.MULTILINE)) == source.count("environment=_GO,") == 2


def test_each_mongodb_has_its_hash() -> None:
    for wheel in mongodb._WHEELS.values():
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in (wheel.sha256, wheel.program_sha256))
