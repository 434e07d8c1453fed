"""Sessions: their pages, their records on disk, and the processes that have slots in them."""
