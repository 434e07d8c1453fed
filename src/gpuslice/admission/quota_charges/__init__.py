"""What a pod counts for in its namespace's quotas."""
