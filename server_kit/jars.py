"""Jars from Maven: Spark's table format as an explicit list, others with all that they depend on.

Maven is the user's own, with the user's settings, so mirrors work and no host is named here. The SHA-256 of
each jar is in ``jars.sha256``. Maven itself verifies what it runs, its plugin, by the repository's checksums
only.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

from server_kit.cache import cache_folder, cached, locked, require_hash, sha256
from server_kit.programs import find_java, find_program, run_program

CASSANDRA_VERSION = "5.0.9"
DEBEZIUM_VERSION = "3.4.1.Final"
DEBEZIUM_MONGODB_VERSION = "3.6.1.Final"
DEBEZIUM_RELATIONAL_VERSION = "3.6.1.Final"
DEBEZIUM_VITESS_VERSION = "3.5.0.Final"
KAFKA_VERSION = "4.3.1"
PULSAR_VERSION = "4.0.0"
REGISTRY_VERSION = "2.6.13.Final"
_REGISTRY_SHA256 = "7aa4f6a1990eee32d46ecc0cb5178ad58ea844ab641a15fc8893b036fb3a8482"
"""Of the lines that ``sha256sum`` prints for the jars in the registry's archive, sorted by their paths."""
ICEBERG_VERSION = "1.12.0"
LOCAL_FILES_VERSION = "0.1.0"
SPARK_JARS = (f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG_VERSION}",)

_JACKSON_VERSION = "2.19.0"
_JACKSON = (
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.datatype:jackson-datatype-jsr310",
)
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>airflow-cdc-provider</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging>{content}</project>
"""


def spark_jars() -> list[Path]:
    """Return the jars that a Spark session needs for the lake, and download them first if need be.

    The list is explicit and not transitive: Spark's Ivy (``--packages``) trips over half-filled Maven
    repositories.
    """
    folder = _cached("spark-jars", f"4.1-iceberg-{ICEBERG_VERSION}", _copy_spark_jars, "Iceberg for Spark")
    return sorted(folder.glob("*.jar"))


def local_files_jar() -> Path:
    """Return a jar with a local file system for Hadoop that starts no program, downloaded first if need be.

    Hadoop's own starts ``chmod`` for each file that it writes where its native library is missing.
    """
    what = "a local file system for Hadoop"
    folder = _cached("local-files", LOCAL_FILES_VERSION, _copy_local_files, what)
    return next(folder.glob("*.jar"))


def cassandra_jars(version: str = CASSANDRA_VERSION) -> Path:
    """Return the folder with a release's jars, and download them first if need be."""
    return _cached("cassandra", version, partial(_copy_cassandra, version), f"Cassandra {version} (67 MB)")


def kafka_jars() -> Path:
    """Return the folder with Kafka's broker, and download it first if need be."""
    return _cached("kafka", KAFKA_VERSION, _copy_kafka, f"Kafka {KAFKA_VERSION} (44 MB)")


def pulsar_jars() -> Path:
    """Return the folder with Pulsar's broker, and download it first if need be."""
    return _cached("pulsar", PULSAR_VERSION, _copy_pulsar, f"Pulsar {PULSAR_VERSION}")


def registry_folder() -> Path:
    """Return the folder with Apicurio's registry, unpacked, and download it first if need be.

    2.6 is the last line that Java 17 runs; the next ones are larger, too.
    """
    what = f"Apicurio Registry {REGISTRY_VERSION} (142 MB)"
    return cached("apicurio-registry", REGISTRY_VERSION, _unpack_registry, what, verify=_require_registry)


def debezium_jars() -> Path:
    """Return the folder with Debezium's connector for Cassandra 5, and download it first if need be."""
    what = f"Debezium {DEBEZIUM_VERSION} for Cassandra 5 (87 MB)"
    return _cached("debezium-cassandra-5", DEBEZIUM_VERSION, _copy_debezium, what)


def debezium_mongodb_jars() -> Path:
    """Return the folder with Debezium's engine and its connector for MongoDB, downloaded first if need be."""
    what = f"Debezium {DEBEZIUM_MONGODB_VERSION} for MongoDB (40 MB)"
    copy = partial(_copy_engine, DEBEZIUM_MONGODB_VERSION, ("io.debezium:debezium-connector-mongodb",))
    return _cached("debezium-mongodb", DEBEZIUM_MONGODB_VERSION, copy, what)


def debezium_vitess_jars() -> Path:
    """Return the folder with Debezium's engine and its connector for Vitess, downloaded first if need be."""
    what = f"Debezium {DEBEZIUM_VITESS_VERSION} for Vitess (60 MB)"
    copy = partial(_copy_engine, DEBEZIUM_VITESS_VERSION, ("io.debezium:debezium-connector-vitess",))
    return _cached("debezium-vitess", DEBEZIUM_VITESS_VERSION, copy, what)


def debezium_relational_jars() -> Path:
    """Return the folder with Debezium's engine, two connectors and an AvroConverter, downloaded if need be.

    The connectors are those for PostgreSQL and MySQL.
    """
    what = f"Debezium {DEBEZIUM_RELATIONAL_VERSION} for PostgreSQL and MySQL (50 MB)"
    converter = f"io.apicurio:apicurio-registry-utils-converter:{REGISTRY_VERSION}"
    connectors = ("io.debezium:debezium-connector-postgres", "io.debezium:debezium-connector-mysql")
    copy = partial(_copy_engine, DEBEZIUM_RELATIONAL_VERSION, connectors, others=(converter,))
    return _cached("debezium-relational", DEBEZIUM_RELATIONAL_VERSION, copy, what)


def _cached(name: str, version: str, copy: Callable[[Path], None], what: str) -> Path:
    return cached(name, version, copy, what, verify=_require_jars)


def _require_jars(folder: Path) -> None:
    for path in folder.glob("*.[jJ][aA][rR]"):
        require_recorded(path)


def _require_registry(folder: Path) -> None:
    lines = (f"{sha256(path)}  {path.relative_to(folder)}\n" for path in sorted(folder.rglob("*.jar")))
    require_hash(f"{folder}", hashlib.sha256("".join(lines).encode()).hexdigest(), _REGISTRY_SHA256)


def _copy_spark_jars(folder: Path) -> None:
    _copy_jars(SPARK_JARS, folder)


def _copy_local_files(folder: Path) -> None:
    _copy_jars([f"com.globalmentor:hadoop-bare-naked-local-fs:{LOCAL_FILES_VERSION}"], folder)


def _copy_jars(jars: Sequence[str], folder: Path) -> None:
    items = "".join(f"<artifactItem>{_coordinates(jar)}</artifactItem>" for jar in jars)
    _maven("copy", _artifacts(items), ["-DoutputDirectory=.", "-Dmdep.useBaseVersion=true"], folder)


def _unpack_registry(folder: Path) -> None:
    coordinates = _coordinates(f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}")
    archive = f"{coordinates}<type>tar.gz</type><classifier>all</classifier>"
    _maven("copy", _artifacts(f"<artifactItem>{archive}</artifactItem>"), ["-DoutputDirectory=."], folder)
    path = next(folder.glob("*.tar.gz"))
    with tarfile.open(path) as content:
        content.extractall(folder, filter="data")
    path.unlink()


def _artifacts(items: str) -> str:
    """Return what names single artifacts to the plugin."""
    group, artifact, version = _PLUGIN.split(":")
    return (
        f"<build><plugins><plugin><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><configuration><artifactItems>{items}</artifactItems></configuration>"
        "</plugin></plugins></build>"
    )


def _copy_cassandra(version: str, folder: Path) -> None:
    thrift = ["org.apache.cassandra:cassandra-thrift"] if version.startswith("3.") else []
    names = ["org.apache.cassandra:cassandra-all", *thrift]
    _maven(
        "copy-dependencies",
        _dependencies(f"{name}:{version}" for name in names),
        ["-DoutputDirectory=."],
        folder,
    )


def _copy_kafka(folder: Path) -> None:
    _maven(
        "copy-dependencies",
        _dependencies([f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"]),
        ["-DoutputDirectory=.", "-DincludeScope=runtime"],
        folder,
    )


def _copy_pulsar(folder: Path) -> None:
    """Copy the broker; what its parts name besides Maven Central has nothing that is needed."""
    broker = f"org.apache.pulsar:pulsar-broker:{PULSAR_VERSION}"
    off = "<releases><enabled>false</enabled></releases><snapshots><enabled>false</enabled></snapshots>"
    unused = "".join(
        f"<repository><id>{name}</id><url>https://unused.invalid</url>{off}</repository>"
        for name in ("confluent", "maven.restlet.org")
    )
    _maven(
        "copy-dependencies",
        f"<repositories>{unused}</repositories>{_dependencies([broker])}",
        ["-DoutputDirectory=.", "-DincludeScope=runtime"],
        folder,
    )


def _copy_debezium(folder: Path) -> None:
    """Copy the connector with a Jackson that it runs with, without what is not in Maven Central."""
    managed = _dependencies(f"{name}:{_JACKSON_VERSION}" for name in _JACKSON)
    coordinates = _coordinates(f"io.debezium:debezium-connector-cassandra-5:{DEBEZIUM_VERSION}")
    without = "<groupId>io.confluent</groupId><artifactId>*</artifactId>"
    _maven(
        "copy-dependencies",
        f"<dependencyManagement>{managed}</dependencyManagement>"
        f"<dependencies><dependency>{coordinates}<exclusions><exclusion>{without}</exclusion></exclusions>"
        "</dependency></dependencies>",
        ["-DoutputDirectory=."],
        folder,
    )


def _copy_engine(version: str, connectors: Sequence[str], folder: Path, others: Sequence[str] = ()) -> None:
    """Copy Debezium's engine with some connectors, and other jars."""
    names = ["io.debezium:debezium-embedded", *connectors]
    _maven(
        "copy-dependencies",
        _dependencies([*(f"{name}:{version}" for name in names), *others]),
        ["-DoutputDirectory=.", "-DincludeScope=runtime"],
        folder,
    )


def _dependencies(jars: Iterable[str]) -> str:
    items = "".join(f"<dependency>{_coordinates(jar)}</dependency>" for jar in jars)
    return f"<dependencies>{items}</dependencies>"


def _maven(goal: str, content: str, options: Sequence[str], folder: Path) -> None:
    find_java()
    maven = find_program("mvn", "maven")
    pom = folder / "jars.pom.xml"
    pom.write_text(_POM.format(content=content))
    # Two at a time would write to one local repository, which Maven 3 doesn't guard.
    with locked(cache_folder() / ".maven.lock", "Maven's repository is used"):
        run_program(
            [maven, "-q", "-B", "-C", "-f", str(pom), f"{_PLUGIN}:{goal}", *options],
            "downloading jars with Maven",
            cwd=folder,
        )
    for path in (*folder.glob("*.jar"), *folder.glob("*.tar.gz")):
        require_recorded(path)


def require_recorded(path: Path) -> None:
    """Refuse a file of Maven whose hash isn't the recorded one.

    Raises:
        ConfigurationError: It is another one, or none is recorded.
    """
    require_hash(f"{path}", sha256(path), _recorded().get(path.name))


@cache
def _recorded() -> dict[str, str]:
    lines = Path(__file__).with_name("jars.sha256").read_text().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _coordinates(text: str) -> str:
    group, artifact, version = text.split(":")
    return f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
