"""What every call passes before its handler: access, quotas, audit."""
