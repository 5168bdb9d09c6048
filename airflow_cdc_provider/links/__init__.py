"""Links from a task to what belongs to it."""
