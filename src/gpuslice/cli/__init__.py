"""The command `gpuslice`."""
