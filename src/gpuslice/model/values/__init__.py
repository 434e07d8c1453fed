"""How amounts, times and names are written: text to number and back."""
