"""What one process does for the whole cluster: claim templates, webhook configurations, the status of policies."""
