"""The HTTPS server of the webhook: sockets and TLS, HTTP/1.1, endpoints, metrics, drain.

A bare asyncio protocol on uvloop, with httptools for the grammar: the API server is its only client that matters, and
every microsecond here is added to the creation of a pod. It knows the cluster only by `collaborators`.
"""
