"""Simulated machines: what `gpuslice sim` makes, so that everything runs where there is no GPU."""
