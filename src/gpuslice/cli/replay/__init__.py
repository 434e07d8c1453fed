"""What would become of the pods that there are, before gpuslice is installed or a policy is written."""
