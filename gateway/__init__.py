"""The gateway: accepts requests and jobs with deadlines, and dispatches them to workers."""
