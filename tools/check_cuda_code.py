#!/usr/bin/env python3
"""Compiles kernels for the architectures that have their matrix instruction and looks at the machine code.

For each kernel: registers, stack, spills and how often the instruction is in it. Fails on a spill, or where a
kernel lacks the instruction. No GPU is needed.

sm_70 is no target of CUDA 13. It is compiled by clang (19 was tried) with a CUDA 12 folder (bin/ptxas, include/,
nvvm/libdevice: the Python packages nvidia-cuda-nvcc-cu12, nvidia-cuda-runtime-cu12 and nvidia-cuda-cccl-cu12 hold
them) and read by a disassembler of CUDA 12 or 13.0. Without these sm_70 is skipped and said to be;
--require-sm70 makes that a failure.
"""
import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# file, architecture, what every kernel in it must hold
CHECKS = [
    ("backends/cuda/ops/linear_few.cu", "sm_90a", r"HMMA\.16816"),
    ("backends/cuda/ops/linear_tile.cu", "sm_90a", r"HMMA\.16816"),
    ("backends/cuda/ops/linear_sm120.cu", "sm_120a", r"OMMA\.SF\.16864"),
    ("backends/cuda/ops/linear_sm70.cu", "sm_70", r"HMMA\.884"),
]


class Missing(Exception):
    """A tool that is not there."""


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def tool(given, name):
    found = shutil.which(given or name)
    if found is None:
        raise Missing(f"{given or name} is not installed")
    return found


def compiled(file, arch, out, args):
    """Object file and what ptxas said."""
    common = ["-std=c++20", "-I.", "-Icore/include", "-c", file, "-o", out]
    if arch != "sm_70":
        compute = arch.replace("sm_", "compute_")
        return run([tool(args.nvcc, "nvcc"), *common, "-fmad=false", "--expt-relaxed-constexpr",
                    f"-gencode=arch={compute},code={arch}", "-Xptxas=-v"])
    if not args.cuda12:
        raise Missing("no folder of CUDA 12 was given (--cuda12)")
    return run([tool(args.clang, "clang++-19"), "-x", "cuda", *common, "-O3", "-ffp-contract=off",
                "-Wno-unknown-cuda-version", f"--cuda-path={pathlib.Path(args.cuda12).resolve()}",
                f"--cuda-gpu-arch={arch}", "--cuda-device-only", "-Xcuda-ptxas", "-v"])


Usage = collections.namedtuple("Usage", "registers stack stores loads")


def usages(text):
    """Of each kernel, from ptxas' messages; functions beside kernels have no register line of their own."""
    result, name, frame = {}, None, None
    for line in text.splitlines():
        if m := re.search(r"Compiling entry function '(\S+)'", line):
            name, frame = m[1], None
        elif m := re.search(r"Function properties for (\S+)", line):
            frame = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if frame in (None, name):
                result[name] = Usage(0, *map(int, m.groups()))
        elif m := re.search(r"Used (\d+) registers", line):
            if name in result:
                result[name] = result[name]._replace(registers=int(m[1]))
    return result


def instructions(object_file, arch, pattern, args):
    """How often the pattern stands in each function."""
    if arch == "sm_70":
        text = run([tool(args.nvdisasm12, "nvdisasm"), object_file])
    else:
        text = run([tool(args.cuobjdump, "cuobjdump"), "-sass", object_file])
    counts, name = collections.Counter(), None
    for line in text.splitlines():
        if m := re.search(r"Function : (\S+)|^\.text\.(\S+):|\.section\s+\.text\.([^,\s]+)", line):
            name = m[1] or m[2] or m[3]
        elif re.search(pattern, line):
            counts[name] += 1
    return counts


def readable(symbols):
    filt = shutil.which("c++filt")
    if filt is None or not symbols:
        return dict(zip(symbols, symbols))
    text = subprocess.run([filt, *symbols], capture_output=True, text=True).stdout.splitlines()
    names = [re.sub(r"nibble::|cuda::|\(anonymous namespace\)::|^void ", "", t).split("(nib")[0] for t in text]
    return dict(zip(symbols, [n.rsplit("(", 1)[0] if n.endswith(")") else n for n in names]))


def check(file, arch, pattern, args, folder):
    """Number of faults."""
    out = os.path.join(folder, pathlib.Path(file).stem + "." + arch)
    use = usages(compiled(file, arch, out, args))
    counts = instructions(out, arch, pattern, args)
    names = readable(list(use))
    faults = 0 if use else 1
    if not use:
        print(f"{file} {arch}: no kernel found")
    for symbol, u in use.items():
        what = []
        if u.stores or u.loads:
            what.append("spills")
        if counts[symbol] == 0:
            what.append("no " + pattern.replace("\\", ""))
        print(f"{arch:8} {names[symbol]:58} {u.registers:3} registers, stack {u.stack}, spills {u.stores}/{u.loads}, "
              f"{counts[symbol]} x {pattern.replace(chr(92), '')}" + ("  FAULT: " + ", ".join(what) if what else ""))
        faults += bool(what)
    return faults


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="*", help="only these of the checked files")
    p.add_argument("--nvcc", help="default: the one on PATH")
    p.add_argument("--cuobjdump", help="of CUDA 12.8 or newer; default: the one on PATH")
    p.add_argument("--clang", help="default: clang++-19")
    p.add_argument("--cuda12", metavar="DIR", help="CUDA 12 folder for clang")
    p.add_argument("--nvdisasm12", help="a disassembler that knows sm_70")
    p.add_argument("--require-sm70", action="store_true")
    args = p.parse_args()
    unknown = [f for f in args.files if not any(c[0].endswith(f) for c in CHECKS)]
    if unknown:
        p.error("expected files of the table of checks, found " + ", ".join(unknown))
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for file, arch, pattern in CHECKS:
            if args.files and not any(file.endswith(f) for f in args.files):
                continue
            try:
                faults += check(file, arch, pattern, args, folder)
            except Missing as why:
                needed = arch != "sm_70" or args.require_sm70
                print(f"{arch:8} {file}: {'FAULT' if needed else 'skipped'}: {why}")
                faults += needed
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
