"""The gateway's HTTP port: the REST form of the protocol, metrics, health."""
