"""The webhook's application: its endpoints, its validation, its metrics."""
