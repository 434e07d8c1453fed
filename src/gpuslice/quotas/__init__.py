"""Quotas: what the pods of a namespace may hold of GPUs at one moment."""
