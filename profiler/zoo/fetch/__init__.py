"""Download, verification and installation of the weights that MLPerf published."""
