"""What the controller keeps as it should be, one module each."""
