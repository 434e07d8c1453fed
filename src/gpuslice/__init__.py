"""GPU slicing for Kubernetes: many workloads share a GPU, each inside its quota."""
