"""Ways of asking for a GPU, one module each. A dialect turns what a container says into requests and knows no backend."""
