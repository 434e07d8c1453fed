"""Claims: from an allocation to what a container can be started with, and back."""
