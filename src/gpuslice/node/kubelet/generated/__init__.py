"""What tools/protos.py makes from Kubernetes' definitions."""
