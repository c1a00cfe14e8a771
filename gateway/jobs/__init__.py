"""Jobs on their way from a client to the dispatcher."""
