"""What `gpuslice run` is made of."""
