"""The attach socket: how a process gets its slot in a session."""
