"""The configuration of an installation: one versioned file for webhook, controller and agent."""
