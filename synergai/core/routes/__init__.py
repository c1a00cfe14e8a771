"""Routes: which parts of an engine run on which workers, one behind the other."""
