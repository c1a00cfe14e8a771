"""Access to the gateway: who calls, what they may do, and for which tenant."""
