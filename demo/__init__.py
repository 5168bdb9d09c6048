"""The demo: both databases, a private Airflow, two DAG runs, and an independent comparison.

Run it with ``make demo``; see :mod:`demo.__main__`.
"""
