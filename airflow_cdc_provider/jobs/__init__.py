"""What spark-submit runs: an application per stage, told by a job spec, answered by a result file."""
