"""The GPUs of the node: what NVML says of them, their health, their MIG partitions, their owner's policies."""
