"""The vendor's driver as this agent finds it on the node: libraries, lists of processes, devices for containers."""
