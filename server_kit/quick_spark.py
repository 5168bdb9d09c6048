"""What makes Spark quick in tests: an archive of its classes, and files written without a program for each.

A JVM that starts Spark and merges into one Iceberg table spends some 40 % of its CPU time on reading classes
and verifying them; with an archive, made once per machine and mapped into memory, that is done before (Java
calls it class data sharing). Java takes an archive only with the Java, jars and class path that it was made
with and goes on without it otherwise, also where the class path has a folder with files in it, as it has when
``SPARK_CONF_DIR`` is set. So Spark's jars are in the cache, too: one archive serves all virtual environments.
An archive has no classes of ``--jars``: Iceberg's jar is on the class path.

Hadoop's local file system starts ``chmod`` for each file that it writes, some twenty times in a merge, and
writes a checksum file for each. Another one that does neither makes a merge of few rows a sixth faster.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from server_kit.cache import cached
from server_kit.jars import local_files_jar, spark_jars
from server_kit.programs import find_java, run_program

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Java would print to stdout which classes it leaves out."""

_FILES = "-Dspark.hadoop.fs.file.impl=com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"


def quick_spark() -> dict[str, str]:
    """Return environment variables that make Spark quick; the files that they name are created if missing."""
    folder = cached("spark-classes", _version(), _archive, "an archive of Spark's classes (180 MB)", "making")
    return {
        "SPARK_HOME": str(_spark_home()),
        "SPARK_DIST_CLASSPATH": _class_path(),
        "SPARK_SUBMIT_OPTS": f"-XX:SharedArchiveFile={folder / 'spark.jsa'} {_QUIET} {_FILES}",
    }


def _version() -> str:
    """Hash what an archive holds for."""
    java = Path(find_java()).resolve()
    digest = hashlib.blake2b(digest_size=12)
    for file in (java, *sorted((_spark_home() / "jars").glob("*.jar")), *spark_jars(), local_files_jar()):
        stat = file.stat()
        digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    digest.update(_class_path().encode())
    return digest.hexdigest()


def _class_path() -> str:
    """Return the jars that are added to Spark's; an archive has no classes of ``--jars``."""
    return os.pathsep.join(map(str, (local_files_jar(), *spark_jars())))


def _spark_home() -> Path:
    import pyspark

    if "SPARK_HOME" in os.environ:
        return Path(os.environ["SPARK_HOME"])
    package = Path(pyspark.__file__).parent
    return cached("spark", pyspark.__version__, partial(_link_spark, package), "Spark (480 MB)", "copying")


def _link_spark(package: Path, folder: Path) -> None:
    for name in ("bin", "jars", "python"):
        shutil.copytree(package / name, folder / name, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _archive(folder: Path) -> None:
    archive = folder / "spark.jsa"
    work = folder / "work"
    options = {
        "SPARK_HOME": str(_spark_home()),
        "SPARK_DIST_CLASSPATH": _class_path(),
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive} -XX:TieredStopAtLevel=1 {_QUIET} {_FILES}",
        "SPARK_CONF_DIR": str(_spark_home() / "conf"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    work.mkdir()
    run_program([sys.executable, "-m", __name__, str(work)], "archiving Spark's classes", environment=options)
    shutil.rmtree(work)


def _load_classes(work: Path) -> None:
    """Do in a session what loads the classes of most jobs, then end its JVM, which writes the archive."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": (work / "lake").as_uri(),
    }
    builder = SparkSession.builder.config(map=settings)
    spark = builder.getOrCreate()
    spark.sql("CREATE TABLE lake.n.t (id bigint, text string) USING iceberg")
    for first in (0, 5):
        rows = spark.range(first, first + 10).selectExpr("id", "CAST(id AS string) AS text")
        rows.mapInArrow(lambda batches: batches, "id bigint, text string").createOrReplaceTempView("rows")
        spark.sql(
            "MERGE INTO lake.n.t USING rows ON t.id = rows.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    assert spark.sql("SELECT text, count(*) FROM lake.n.t GROUP BY text").count() == 15
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # its sign to end
    java.wait()


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]))
