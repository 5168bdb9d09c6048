"""What spark-submit runs: one application per stage, each described by a job spec and answered by a result file."""
