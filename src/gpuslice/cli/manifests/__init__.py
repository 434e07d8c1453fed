"""Manifests as files hold them, before and after admission."""
