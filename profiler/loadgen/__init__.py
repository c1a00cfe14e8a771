"""Load generation: MLPerf LoadGen with a gateway as system under test, and open-loop traces."""
