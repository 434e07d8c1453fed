"""The nouns of gpuslice and their rules. Pure: nothing here reads a file, a clock or a socket."""
