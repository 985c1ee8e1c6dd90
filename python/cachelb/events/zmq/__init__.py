"""KV events over ZMQ."""
