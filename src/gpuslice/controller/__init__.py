"""What one process does for the whole cluster: removes templates that nobody uses, says what it thinks of policies."""
