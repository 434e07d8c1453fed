"""The agent of a node: it owns the sessions, and knows who is attached to each and what they hold."""
