"""TV-L1 kernels for numba: compiler options, and the checksum that invalidates numba's cache.

docs/concepts/flow-kernels.md explains the kernels: why some are LLVM intrinsics, memory layout, rounding, tests.
"""

import zlib
from pathlib import Path
from typing import Any

# No fastmath: every operation is rounded as in OpenCV. TV-L1 with OpenCV's step sizes amplifies differences in the
# last bit to hundredths of a pixel.
JIT_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def source_checksum() -> int:
    """Return a checksum of the sources in this folder.

    numba's cache checks the file of a cached function, but not the files of the functions that it calls, and would keep
    using their old versions.
    """
    checksum = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum
