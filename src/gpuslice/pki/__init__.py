"""The webhook's certificates: an authority, its rotation, and the API servers' trust in it."""
