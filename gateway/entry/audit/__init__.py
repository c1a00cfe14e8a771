"""The audit log: who changed what, and which calls were refused."""
