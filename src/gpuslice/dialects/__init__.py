"""Ways of asking for a GPU, one module each: from what a container says to requests. A dialect knows no backend."""
