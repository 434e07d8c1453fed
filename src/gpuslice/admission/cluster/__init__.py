"""What admission knows of the cluster, kept by watches."""
