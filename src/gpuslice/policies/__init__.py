"""SlicePolicy objects: their shape, how they are parsed, and which rule decides about a pod."""
