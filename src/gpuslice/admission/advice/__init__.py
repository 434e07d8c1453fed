"""What a pod's author probably meant, where what is written does nothing."""
