from importlib.util import find_spec

# LoadGen has no wheels for Python 3.14.
collect_ignore = (
    [] if find_spec("mlperf_loadgen") else ["test_loadgen_parts.py", "test_run_watch.py"]
)
