"""Asks a gateway for much: MLPerf LoadGen with it as the system under test, and request traces."""
