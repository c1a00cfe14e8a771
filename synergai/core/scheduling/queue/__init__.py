"""The waiting jobs in the policy's order."""
