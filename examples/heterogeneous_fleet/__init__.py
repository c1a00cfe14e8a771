"""One machine emulates three heterogeneous workers; deadlines determine their power modes."""
