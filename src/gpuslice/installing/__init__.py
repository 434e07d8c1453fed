"""What is installed on a cluster, as Kubernetes objects: one module for each part, `parts` for all of them. Pure."""
