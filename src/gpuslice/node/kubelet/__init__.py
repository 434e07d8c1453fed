"""What the kubelet is told and asks: gRPC over unix sockets in its folder. Imported only when the agent serves one."""
