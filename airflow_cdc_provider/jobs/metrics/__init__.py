"""Counters of a running job: segments, rows of snapshots, and their names in Debezium's metrics.

It imports the job's spec and ``jobs.spark``; the stages and the Airflow side read it.
"""
