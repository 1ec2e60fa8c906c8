"""A graphics card that is none: `kernels.cu`, compiled by g++, with a context of its own for each thread of a block.

Blocks run one after the other, and threads from barrier to barrier. So indices, shared memory and barriers are tried
for real, and speed is not. What only a card can show is in `benchmarks/cuda_device.py`.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from counterveil.engine import cuda

_BEFORE = """
#include <functional>
#include <vector>
#include <ucontext.h>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct dim { int x, y, z; };
static dim threadIdx, blockIdx, gridDim;
static ucontext_t turns, threads_[1024];
static bool ended[1024];
static std::vector<char> stacks(1024 * (64 << 10));
static std::function<void()> work;
static void __syncthreads() { swapcontext(&threads_[threadIdx.x], &turns); }
template <class T> static T __ldg(const T* at) { return *at; }
template <class T> static T __ldcs(const T* at) { return *at; }
template <class T> static void __stcs(T* at, T value) { *at = value; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
static unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
    return r;
}
static void atomicXor(unsigned* at, unsigned value) { __atomic_fetch_xor(at, value, __ATOMIC_RELAXED); }
static int min(int a, int b) { return a < b ? a : b; }
"""
_AFTER = """
static void one() {
    work();
    ended[threadIdx.x] = true;
}

static void everywhere(int x, int y, int threads, std::function<void()> kernel) {
    gridDim = {x, y, 1};
    work = kernel;
    for (int block = 0; block < x * y; ++block) {
        blockIdx = {block % x, block / x, 0};
        for (int n = 0; n < threads; ++n) {
            getcontext(&threads_[n]);
            threads_[n].uc_stack.ss_sp = &stacks[n * (64 << 10)];
            threads_[n].uc_stack.ss_size = 64 << 10;
            threads_[n].uc_link = &turns;
            makecontext(&threads_[n], one, 0);
            ended[n] = false;
        }
        for (int left = threads; left;)  // everybody runs to the next barrier, or to the end
            for (int n = 0; n < threads; ++n)
                if (!ended[n]) {
                    threadIdx = {n, 0, 0};
                    swapcontext(&turns, &threads_[n]);
                    left -= ended[n];
                }
    }
}
"""


@cache
def _compiled(options: tuple[str, ...]) -> ctypes.CDLL:
    text = cuda.source()
    kernels = re.findall(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s*(\w+)\(([^)]*)\)', text)
    text = text.replace("extern __shared__", "extern").replace("__shared__", "static")
    launchers = []
    for name, parameters in kernels:
        kinds = [re.sub(r"\w+$", "", each.strip()) for each in parameters.split(",")]
        given = ", ".join(f"*({kind}*)args[{n}]" for n, kind in enumerate(kinds))
        call = f"everywhere(x, y, threads, [=] {{ {name}({given}); }});"
        launchers.append(f'extern "C" void launch_{name}(int x, int y, int threads, void** args) {{ {call} }}')
    shared = "u32 own[1 << 16]; u64 room[1 << 14]; uint2 near2[1 << 14];"
    guarded = [_guarded(name, launcher) for (name, _), launcher in zip(kernels, launchers, strict=True)]
    whole = "\n".join([_BEFORE, text, shared, _AFTER, *guarded])
    flags = [option for option in options if option.startswith("-D")]
    with tempfile.TemporaryDirectory(prefix="emulated-") as folder:
        (Path(folder) / "kernels.cpp").write_text(whole)
        command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", *flags, "kernels.cpp", "-o", "kernels.so"]
        subprocess.run(command, cwd=folder, check=True)
        return ctypes.CDLL(f"{folder}/kernels.so")  # it stays loaded when its file is gone


def _guarded(name: str, launcher: str) -> str:
    """Return a launcher under the condition that its kernel has."""
    needs = {
        "table": "CODE_BITS == 8 && VALUE_BITS == 32",
        "together": "CODE_BITS == 8 && VALUE_BITS == 32",
        "together_paired": "CODE_BITS == 8 && VALUE_BITS == 32 && SUM_BITS == 32",
        "polynomial": "VALUE_BITS == 32",
        "slice": "defined(BITS)",
    }
    return f"#if {needs[name]}\n{launcher}\n#endif" if name in needs else launcher


class _Kernel:
    """A kernel, launched as CuPy launches it."""

    max_dynamic_shared_size_bytes = 0

    def __init__(self, launch: Any) -> None:
        self._launch = launch

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        assert shared_mem <= max(48 << 10, self.max_dynamic_shared_size_bytes)
        held = [
            np.array(arg.ctypes.data, dtype=np.uint64) if isinstance(arg, np.ndarray) else np.array(arg) for arg in args
        ]
        assert all(arg.flags.c_contiguous for arg in args if isinstance(arg, np.ndarray))
        places = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        x, y = (*grid, 1)[:2]
        assert 0 < y < 65_536
        self._launch(ctypes.c_int(x), ctypes.c_int(y), ctypes.c_int(block[0]), places)


class _Module:
    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        self._library = _compiled(options)

    def get_function(self, name: str) -> _Kernel:
        return _Kernel(getattr(self._library, f"launch_{name}"))


class _Device:
    attributes: ClassVar = {"MultiProcessorCount": 1, "MaxSharedMemoryPerBlockOptin": 227 << 10}


class Xp:
    """As much of CuPy as the engine uses, over NumPy. Memory that nobody has written is not zero."""

    RawModule = _Module
    zeros, asarray, uint8 = staticmethod(np.zeros), staticmethod(np.array), np.uint8

    class cuda:  # noqa: N801 - as CuPy has it
        Device = _Device

    @staticmethod
    def asnumpy(array: Any) -> Any:
        return np.array(array)

    @staticmethod
    def empty(shape: Any, dtype: Any) -> Any:
        made = np.empty(shape, dtype=dtype)
        made.reshape(-1).view(np.uint8)[:] = 0xA5
        return made


def card(monkeypatch: Any) -> cuda.Cuda:
    """Return a card whose kernels run on this machine's processors."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here: apt-get install g++")
    monkeypatch.setattr(importlib, "import_module", lambda _: Xp)
    made = cuda.Cuda()
    monkeypatch.undo()
    return made
