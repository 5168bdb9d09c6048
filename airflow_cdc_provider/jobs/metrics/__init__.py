"""What a job counts while it works: segments, rows of snapshots, and the names Debezium has for such numbers.

It knows the job's spec and ``jobs.spark``; stages and Airflow's side read it.
"""
