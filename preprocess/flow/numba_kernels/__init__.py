"""How the kernels of this room are compiled, and when a cached compilation is out of date."""

import zlib
from pathlib import Path
from typing import Any

# No fast arithmetic: every operation is rounded as OpenCV rounds it. TV-L1 with OpenCV's step sizes amplifies
# differences in the last bit to hundredths of a pixel; like this there are none.
JIT_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def source_checksum() -> int:
    """Return a checksum of this folder's sources.

    Numba's cache notices a change in the file of a cached function, but not in the files of the functions that it
    calls, and would go on with the old ones.
    """
    checksum = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum
