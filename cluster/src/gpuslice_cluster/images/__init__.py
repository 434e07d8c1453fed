"""Container images made of what is on this machine: there is no registry to pull from."""
