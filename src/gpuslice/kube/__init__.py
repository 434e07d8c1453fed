"""Plumbing to the API server: credentials, calls, watches, leases, events. Knows nothing of GPUs."""
