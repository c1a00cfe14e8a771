"""Admission control: limits of the gateway, and quotas of tenants."""
