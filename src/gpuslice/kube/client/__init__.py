"""Calls to the API server: credentials, connections, requests."""
