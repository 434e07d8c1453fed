"""The ledger: every charge, kept in SQLite or PostgreSQL, added up by hour and day."""
