"""Compile CUDA source without a graphics card or its driver, by NVRTC from the package nvidia-cuda-nvrtc."""

from __future__ import annotations

import ctypes
import struct
from importlib.util import find_spec
from pathlib import Path


def library() -> ctypes.CDLL:
    """Load NVRTC."""
    found = find_spec("nvidia")
    assert found is not None
    folders = [Path(place) for place in found.submodule_search_locations or []]
    return ctypes.CDLL(str(next(file for folder in folders for file in folder.glob("*/lib/libnvrtc.so.*"))))


def compiled(source: str, *options: str) -> tuple[str, bytes]:
    """Return the PTX of some source, and the machine code; or raise what the compiler says."""
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    log = _told(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    if failed:
        raise ValueError(log)
    ptx = _told(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode()
    code = _told(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx, code


def _told(size_of: object, get: object, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0  # type: ignore[operator]
    room = ctypes.create_string_buffer(size.value)
    assert get(program, room) == 0  # type: ignore[operator]
    return room.raw


_REGISTERS, _FRAME = 0x2F, 0x11  # attributes of machine code that name a kernel and a number
_OF_KERNEL = 4  # the format of such attributes


def resources(code: bytes) -> dict[str, dict[str, int]]:
    """Return, for each kernel, how many registers a thread takes, and how many bytes it keeps outside registers."""
    table, size, count, names = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<3H", code, 58)
    sections = [struct.unpack_from("<IIQQQQII", code, table + size * n) for n in range(count)]

    def text(strings: int, at: int) -> str:
        begin = sections[strings][4] + at
        return code[begin : code.index(b"\0", begin)].decode()

    places = {text(names, section[0]): section for section in sections}
    symbols, (begin, length) = places[".symtab"], places[".nv.info"][4:6]
    found, at = dict[str, dict[str, int]](), begin
    while at < begin + length:
        form, attribute, value = struct.unpack_from("<BBH", code, at)
        at += 4
        if form != _OF_KERNEL:
            continue
        if attribute in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack_from("<II", code, at)
            name = text(symbols[6], struct.unpack_from("<I", code, symbols[4] + 24 * symbol)[0])
            found.setdefault(name, {})["registers" if attribute == _REGISTERS else "frame"] = number
        at += value
    return found
