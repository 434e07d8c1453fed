"""What sessions really use: compared with NVML, attributed to sessions, and shown as metrics."""
