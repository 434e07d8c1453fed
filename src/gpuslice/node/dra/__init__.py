"""The DRA driver: ResourceSlices published, and the kubelet answered."""
