"""What a task does around the work of its job: arguments, files, errors, state, metrics and lineage."""
