"""Single requests: checked, admitted, answered, timed."""
