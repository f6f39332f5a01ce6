"""What happens around each call: the steps before and after its handler, and workarounds for faults of grpcio."""
