"""Which worker of pytest-xdist runs which file: all but the last begin with those that need Spark.

A Spark session takes half a minute of CPU time until it is warm, and goes on compiling for many minutes. So
the last worker runs files without Spark, and others only when no more of these are left.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_WITH_SPARK = (
    "tests/contract/lake/",
    "tests/e2e/",
    "tests/integration/airflow/test_health.py",
    "tests/integration/airflow/test_rebootstrap.py",
    "tests/integration/jobs/",
    "tests/integration/lake/",
)
"""Files whose tests use the session's Spark, by the beginning of their paths."""


class FewSparkSessions(LoadFileScheduling):
    """A file stays in one worker; the last worker gets those that need Spark when all others have started."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        with_spark = node is not self.nodes[-1]
        for file in self.workqueue:
            if file.startswith(_WITH_SPARK) == with_spark:
                self.workqueue.move_to_end(file, last=False)
                break
        super()._assign_work_unit(node)
