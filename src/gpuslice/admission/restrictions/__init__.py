"""What a pod may leave admission with: a policy's maxima, and what is refused beside a slice."""
