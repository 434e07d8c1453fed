"""The webhook's server, as its own tests start it."""

from __future__ import annotations

from tests.webhook.conftest import authority, new_webhook, serve

__all__ = ["authority", "new_webhook", "serve"]
