"""Claims of slices: the amounts in them, their templates, and the recipes that a pod carries."""
