"""Jobs between their clients and the dispatcher."""
