"""Uses up the memory of GPU 0 until it is killed: ``python gpu_filler.py SPARE_BYTES``.

It calls the driver's library, so that it needs no package. It prints a line once the memory is
used.
"""

import ctypes
import sys
import time


def main(spare: int) -> None:
    """Allocate all memory but `spare` bytes, then sleep."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call(driver, "cuInit", 0)
    call(driver, "cuDeviceGet", ctypes.byref(device), 0)
    call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(driver, "cuCtxSetCurrent", context)
    call(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    pointer = ctypes.c_void_p()
    call(driver, "cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(free.value - spare))
    print(f"{free.value - spare} of {total.value} bytes used", flush=True)
    time.sleep(3600)


def call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of the driver; exit if it fails."""
    if code := getattr(driver, name)(*arguments):
        sys.exit(f"{name} failed with code {code}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
