"""How a slice is asked of Kubernetes. A backend knows no dialect: it writes what a container gets, and nothing else."""
