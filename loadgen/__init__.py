"""MLPerf LoadGen with the gateway as its system under test, and job experiments."""
