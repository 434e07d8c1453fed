"""The parts of a process: started, supervised, stopped, and their health."""
