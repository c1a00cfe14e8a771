"""Files of records: what clients upload, and the results of jobs over it."""
