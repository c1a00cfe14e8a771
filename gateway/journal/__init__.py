"""Journal: durable record of the accepted jobs."""
