"""What every process of gpuslice needs of the system it runs on: supervised work, health, logs, clocks, files."""
