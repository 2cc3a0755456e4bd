#!/usr/bin/env python3
"""Compiles the Hopper kernels and attention by cooperative matrices for sm_90a with NVRTC and ptxas from PyPI and looks at their
machine code. Needs no GPU.

usage: .ci/check_cuda_source.py SOURCES TOOLS

SOURCES holds what `cargo run -p mcsparse-tests --features cuda-source --example cuda_source -- SOURCES` wrote, TOOLS is a folder
for the compilers. A kernel must spill no register, draw no remark that its warpgroup products run one by one (C7508 to C7517),
and have exactly the instructions that multiply (HGMMA of warpgroups, HMMA of planes) that its source says.
"""
import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

SOURCES, TOOLS = Path(sys.argv[1]), Path(sys.argv[2])
PACKAGES = ["nvidia-cuda-nvrtc==13.0.*", "nvidia-cuda-nvcc==13.0.*", "nvidia-cuda-runtime==13.0.*", "nvidia-cuda-cccl==13.0.*",
            "nvidia-cuda-nvdisasm==13.*"]
CUDA = TOOLS / "nvidia" / "cu13"

if not (CUDA / "bin" / "ptxas").exists():
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--root-user-action=ignore", "--target", TOOLS, *PACKAGES]
    if subprocess.run(install).returncode:
        # The machine, not the project.
        print("NOT CHECKED: the CUDA compilers could not be installed from PyPI")
        sys.exit(0)

library = CUDA / "lib"
ctypes.CDLL(next(library.glob("libnvrtc-builtins.so.13*")), mode=ctypes.RTLD_GLOBAL)
NVRTC = ctypes.CDLL(next(path for path in library.glob("libnvrtc.so.13*")))
DISASSEMBLER = next(path for path in TOOLS.rglob("nvdisasm") if path.parent.name == "bin")


def text(program, what):
    size = ctypes.c_size_t()
    getattr(NVRTC, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(NVRTC, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def to_ptx(source):
    program = ctypes.c_void_p()
    assert NVRTC.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None) == 0
    options = ["--gpu-architecture=sm_90a", f"--include-path={CUDA}/include", f"--include-path={CUDA}/include/cccl"]
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if NVRTC.nvrtcCompileProgram(program, len(options), arguments):
        sys.exit(text(program, "ProgramLog")[:4000])
    return text(program, "PTX")


def check(kernel):
    base = SOURCES / kernel["name"]
    ptx, cubin = base.with_suffix(".ptx"), base.with_suffix(".cubin")
    ptx.write_text(to_ptx(base.with_suffix(".cu").read_text()))
    done = subprocess.run([CUDA / "bin" / "ptxas", "-v", "-arch=sm_90a", ptx, "-o", cubin], capture_output=True, text=True)
    report = done.stdout + done.stderr
    if done.returncode:
        print(f"{kernel['name']}: ptxas: {report}", flush=True)
        return False
    sass = subprocess.run([DISASSEMBLER, "-c", cubin], capture_output=True, text=True, check=True).stdout
    base.with_suffix(".sass").write_text(sass)
    registers = int(re.search(r"Used (\d+) registers", report).group(1))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", report))
    remarks = re.findall(r"\(C75\d\d\)[^\n]*", report)
    products = len(re.findall(rf"\b{kernel['instruction']}\b", sass))
    wrong = [f"{spills} bytes spilled"] if spills else []
    wrong += remarks
    wrong += [f"{products} {kernel['instruction']}, {kernel['products']} expected"] if products != kernel["products"] else []
    print(f"{kernel['name']:32s} {registers:4d} registers {products:4d} products  {'; '.join(wrong) or 'ok'}", flush=True)
    return not wrong


# All of them, so that one run shows everything that is wrong.
results = [check(kernel) for kernel in json.loads((SOURCES / "kernels.json").read_text())]
assert results, "no kernels"
sys.exit(0 if all(results) else 1)
