"""PySpark's daemon with the imports of a job's tasks: the workers that it forks have them at once.

A test's task takes less time than its worker's imports. The value of Spark's option
``spark.python.daemon.module``; Spark starts it in place of ``pyspark.daemon``.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import airflow_cdc_provider.lake.merge_kernel  # noqa: F401  # for the workers

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # workers don't collect what they share
    manager()
