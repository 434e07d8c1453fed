"""What makes the API server ask the webhook: configurations, match conditions, admission policies."""
