"""NVRTC, NVIDIA's compiler at run time, called through ctypes: it needs no card and no CuPy.

The library comes with the wheel nvidia-cuda-nvrtc, with CuPy's CUDA packages or with the toolkit.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from caldera.errors import ConfigError, DeviceError


@cache
def library() -> ctypes.CDLL | None:
    """The library, or None where there is none."""
    for place in _places():
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


def _places() -> Iterator[str]:
    packages = find_spec("nvidia")
    for folder in packages.submodule_search_locations or () if packages else ():
        yield from map(str, sorted(Path(folder).glob("*/lib/libnvrtc.so*"), reverse=True))
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    program = shutil.which("nvcc")
    if program:
        homes.append(str(Path(program).resolve().parent.parent))
    for home in filter(None, homes):
        yield from map(str, sorted(Path(home).glob("lib*/libnvrtc.so*"), reverse=True))
    found = find_library("nvrtc")
    if found:
        yield found


def version() -> tuple[int, int]:
    """The version of the library."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_needed().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def compile_source(
    source: str, headers: Mapping[str, str], architecture: str, more: Sequence[str] = ()
) -> bytes:
    """Machine code (a cubin) for an architecture such as "sm_90", by these options among others."""
    nvrtc = _needed()
    program = ctypes.c_void_p()
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
    texts = (ctypes.c_char_p * len(headers))(*[text.encode() for text in headers.values()])
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"caldera.cu", len(headers), texts, names
        )
    )
    try:
        # Up to CUDA 13.0 a generic lambda counts as a function of the host without the last one.
        options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device", *more]
        given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = nvrtc.nvrtcCompileProgram(program, len(options), given)
        if status:
            raise DeviceError.build(
                "CUDA compiler",
                expected="source that compiles",
                got=_text(nvrtc.nvrtcGetProgramLog, nvrtc.nvrtcGetProgramLogSize, program),
                hint="this is a fault of Caldera: please report it with this text",
            )
        return _bytes(nvrtc.nvrtcGetCUBIN, nvrtc.nvrtcGetCUBINSize, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _needed() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise ConfigError.build(
            "CUDA compiler",
            expected="the library nvrtc",
            got="none",
            hint="install it with: pip install nvidia-cuda-nvrtc",
        )
    return found


def _check(status: int) -> None:
    if status:
        library_ = _needed()
        library_.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DeviceError.build(
            "CUDA compiler", expected="success", got=library_.nvrtcGetErrorString(status).decode()
        )


def _bytes(get: object, get_size: object, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(get_size(program, ctypes.byref(size)))  # type: ignore[operator]
    content = ctypes.create_string_buffer(size.value)
    _check(get(program, content))  # type: ignore[operator]
    return content.raw


def _text(get: object, get_size: object, program: ctypes.c_void_p) -> str:
    return _bytes(get, get_size, program).rstrip(b"\0").decode(errors="replace")
