"""A real Kubernetes on this machine, for people and for tests: control plane, and a node with simulated GPUs."""
