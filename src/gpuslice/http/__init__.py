"""An HTTPS server for callers that may be hostile: listening, connections, deadlines, certificates, drain."""
