#!/usr/bin/env python3
"""Looks at the machine code of kernels: registers, stack, spills and matrix instructions of each.

With --objects it reads objects of a build, without it compiles the files of CHECKS itself. Fails on a spill, where
a kernel lacks the instruction that its file is for, and on a known miscompile of ptxas 13.0. No GPU is needed.
Ends with status 77 and a reason where a tool is not there.

sm_70 is no target of CUDA 13. It is compiled by clang (19 was tried) with a CUDA 12 folder (bin/ptxas, include/,
nvvm/libdevice: the Python packages nvidia-cuda-nvcc-cu12, nvidia-cuda-runtime-cu12 and nvidia-cuda-cccl-cu12 hold
them) and read by a disassembler of CUDA 12 or 13.0. Without these sm_70 is skipped and said to be;
--require-sm70 makes that a failure.
"""
import argparse
import bisect
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The delta rule's kernels of either sort of units (backends/cuda/device/delta_products.cuh).
WGMMA_UNITS, MMA_UNITS = r"WgmmaUnits", r"MmaUnits"
# file, architecture, what every kernel in it must hold (None: no instruction of its own; a tuple: all of them; a dict:
# that of the pattern which its readable name matches)
CHECKS = [
    ("backends/cuda/ops/linear_few.cu", "sm_90a", r"HMMA\.16816"),
    ("backends/cuda/ops/linear_tile.cu", "sm_90a", r"HMMA\.16816"),
    ("backends/cuda/ops/experts.cu", "sm_90a", None),
    ("backends/cuda/ops/eights_elementwise.cu", "sm_90a", None),
    ("backends/cuda/ops/eights_norms.cu", "sm_90a", None),
    ("backends/cuda/ops/add_norm.cu", "sm_90a", None),
    ("backends/cuda/ops/add_norm.cu", "sm_120a", None),
    ("backends/cuda/ops/eights_elementwise.cu", "sm_120a", None),
    ("backends/cuda/ops/eights_norms.cu", "sm_120a", None),
    ("backends/cuda/ops/linear_wgmma_nvfp4.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_wgmma_fp8.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_wgmma_bf16.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_group_nvfp4.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_group_fp8.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_group_bf16.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_a8.cu", "sm_90a", (r"QGMMA\.64x", r"UTMALDG\.2D", r"UBLKCP")),
    ("backends/cuda/ops/linear_swiglu_nvfp4.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_swiglu_fp8.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/linear_swiglu_bf16.cu", "sm_90a", r"HGMMA\.64x|HMMA\.16816"),
    ("backends/cuda/ops/delta_prepare.cu", "sm_90a",
     {WGMMA_UNITS: (r"HGMMA\.64x64x16\.F32\.BF16", r"UTMALDG\.2D"), MMA_UNITS: (r"HMMA\.16816\.F32\.BF16", r"UTMALDG\.2D")}),
    ("backends/cuda/ops/delta_pass.cu", "sm_90a",
     {WGMMA_UNITS: (r"HGMMA\.64x64x16\.F32\.BF16", r"HGMMA\.64x64x8\.F32\.TF32", r"UTMALDG\.2D", r"UBLKCP"),
      MMA_UNITS: (r"HMMA\.16816\.F32\.BF16", r"HMMA\.1688\.F32\.TF32", r"UTMALDG\.2D", r"UBLKCP")}),
    ("backends/cuda/ops/delta_prepare.cu", "sm_120a",
     {WGMMA_UNITS: None, MMA_UNITS: (r"HMMA\.16816\.F32\.BF16", r"UTMALDG\.2D")}),
    ("backends/cuda/ops/delta_pass.cu", "sm_120a",
     {WGMMA_UNITS: None, MMA_UNITS: (r"HMMA\.16816\.F32\.BF16", r"HMMA\.1688\.F32\.TF32", r"UTMALDG\.2D", r"UBLKCP")}),
    ("backends/cuda/ops/attention_wgmma.cu", "sm_90a",
     {r"attend_wgmma": (r"HGMMA\.64x(64|128|256)x16\.F32\.BF16", r"UTMALDG"), r"gate_prompts": None}),
    ("backends/cuda/ops/attention_units.cu", "sm_90a",
     {r"attend_units<\d+, \d, 2": r"HMMA\.16816\.F32\.BF16", r"attend_units<\d+, \d, [01]": None}),
    ("backends/cuda/ops/attention_units.cu", "sm_120a",
     {r"attend_units<256, 8, 2": None, r"attend_units<(?!256, 8, 2)": r"HMMA\.16816\.F32\.BF16"}),
    ("backends/cuda/ops/attention_decode.cu", "sm_90a", r"HMMA\.16816\.F32\.BF16"),
    ("backends/cuda/ops/attention_decode.cu", "sm_120a", r"HMMA\.16816\.F32\.BF16"),
    ("backends/cuda/ops/attention_combine.cu", "sm_90a", None),
    ("backends/cuda/ops/attention_combine.cu", "sm_120a", None),
    ("backends/cuda/ops/delta_net.cu", "sm_90a", None),
    ("backends/cuda/ops/delta_net.cu", "sm_120a", None),
    ("backends/cuda/ops/delta_front.cu", "sm_90a", None),
    ("backends/cuda/ops/delta_front.cu", "sm_120a", None),
    ("backends/cuda/ops/delta_units_plain.cu", "sm_90a", None),
    ("backends/cuda/ops/delta_units_plain.cu", "sm_120a", None),
    ("backends/cuda/ops/linear_few.cu", "sm_120a", r"HMMA\.16816"),
    ("backends/cuda/ops/linear_tile.cu", "sm_120a", r"HMMA\.16816"),
    ("backends/cuda/ops/linear_sm120.cu", "sm_120a", r"OMMA\.SF\.16864\..*UE4M3\.4X"),
    ("backends/cuda/ops/linear_fp4.cu", "sm_120a", (r"OMMA\.SF\.16864\..*UE4M3\.4X", r"UTMALDG\.2D", r"UBLKCP")),
    ("backends/cuda/ops/linear_sm70.cu", "sm_70", r"HMMA\.884"),
    ("backends/cuda/ops/linear_sm70_few.cu", "sm_70", r"HMMA\.884"),
    ("backends/cuda/ops/linear_sm70_tile.cu", "sm_70", r"HMMA\.884"),
    ("backends/cuda/ops/delta_sm70_prepare.cu", "sm_70", r"HMMA\.884"),
    ("backends/cuda/ops/delta_sm70_pass.cu", "sm_70", r"HMMA\.884"),
    ("backends/cuda/ops/attention_sm70.cu", "sm_70", r"HMMA\.884"),
    ("backends/cuda/ops/f16_rows.cu", "sm_70", None),
]
# Registers a thread may take, of kernels by their readable names, so that as many blocks fit on a multiprocessor
# (65,536) as they are made for. linear_fp4: 384 threads, one block or two; with setmaxnreg these are the ones before
# threads give and take. linear_sm70: tiles of 256 threads one, few rows of 128 threads four (8 rows of x), three (16) or
# two (32). delta_sm70: two blocks of 128 threads. attention_sm70: three, two or one. eights: four blocks of 256 threads, three of 320 for rms_by_rows.
# add_norm: one block of 640 threads or two of 320.
BUDGETS = {
    ("linear_fp4.cu", "sm_120a"): [(r"linear_fp4<.*, 1> ?>", 65536 // 384 // 8 * 8), (r"linear_fp4<.*, 2> ?>", 168)],
    ("linear_sm70_tile.cu", "sm_70"): [(r"sm70_tile<", 255)],
    ("eights_elementwise.cu", "sm_90a"): [(r"_by_eights<", 64)],
    ("eights_norms.cu", "sm_90a"): [(r"_by_eights<", 64), (r"rms_by_rows<", 64)],
    ("add_norm.cu", "sm_90a"): [(r"add_rms_by_rows<", 65536 // 640)],
    ("add_norm.cu", "sm_120a"): [(r"add_rms_by_rows<", 65536 // 640)],
    ("delta_sm70_prepare.cu", "sm_70"): [(r"sm70_prepare<", 255)],
    ("delta_sm70_pass.cu", "sm_70"): [(r"sm70_pass<", 255)],
    ("attention_sm70.cu", "sm_70"): [(r"sm70_attend<64, ", 168), (r"sm70_attend<", 255)],
    ("linear_sm70_few.cu", "sm_70"): [(r"sm70_few<.*, 1>", 128), (r"sm70_few<.*, 2>", 168), (r"sm70_few<.*, 4>", 255)],
}
# Bytes of stack that are accepted; in an object, which tells no more, anything beyond is taken for spills.
STACK_ACCEPTED = {
    ("linear_wgmma_nvfp4.cu", "sm_90a"): 8,  # of the tiles of 256 rows of x, between their loops
    ("linear_wgmma_fp8.cu", "sm_90a"): 8,
    ("linear_wgmma_bf16.cu", "sm_90a"): 8,
    ("attention.cu", "sm_120a"): 8,  # of prompts without matrix units, two blocks a multiprocessor
    ("linear_a8_plain.cu", "sm_90a"): 256,  # operands of the model
    ("linear_a8_plain.cu", "sm_120a"): 256,
    ("linear_fp4.cu", "sm_90a"): 512,  # around the emulating call; only tests run it there
}
# Sources whose instruction is emulated elsewhere: out of line, so that callers save registers. Only tests run it there.
EMULATED = re.compile(r"(?:linear|delta|attention)_sm70\w*\.cu"), "sm_70"
SKIPPED = 77

# Matrix instructions and those of the copy engine.
MARKED = ("MMA", "UTMALDG", "UBLKCP")
MATRIX = re.compile(r"\s((?:[A-Z]*MMA|UTC\w*MMA|UTMALDG|UBLKCP)(?:\.[A-Za-z0-9_]+)*)\s")
# ptxas 13.0 takes for "is 4" what this sets at 0 as well (backends/cuda/ops/quantize.cu); writing to PT is harmless.
MISCOMPILED = re.compile(r"\sVIMNMX\w*(?:\.\w+)*\.RELU(?:\.\w+)*\s+U?R\w+,\s*U?P\d")


class Missing(Exception):
    """A tool that is not there."""


def run(command, folder=None, cwd=ROOT):
    path = os.environ.get("PATH", "")
    env = dict(os.environ, PATH=f"{folder}{os.pathsep}{path}") if folder else None
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=cwd, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def tool(given, name, folders=()):
    found = shutil.which(given or name)
    if found is None and not given:
        inside = (p for f in folders for p in [pathlib.Path(f) / name, *sorted(pathlib.Path(f).glob(f"**/bin/{name}"))])
        found = next((str(p) for p in inside if os.access(p, os.X_OK) and p.is_file()), None)
    if found is None:
        raise Missing(f"{given or name} is not installed")
    return os.path.abspath(found)


def cuda12(args):
    if args.cuda12:
        return pathlib.Path(args.cuda12).resolve()
    there = [ROOT / "build/cuda12", *sorted(pathlib.Path("/usr/local").glob("cuda-12.*"))]  # tools/test.sh makes the first
    there = [p for p in there if (p / "bin/ptxas").exists()]
    if not there:
        raise Missing("no folder of CUDA 12 (--cuda12)")
    return there[-1]


def compiled(file, arch, out, args):
    """Object file and what ptxas said."""
    common = ["-std=c++20", "-I.", "-Icore/include", "-c", file, "-o", out]
    if arch != "sm_70":
        compute = arch.replace("sm_", "compute_")
        return run([tool(args.nvcc, "nvcc"), *common, "-fmad=false", "--expt-relaxed-constexpr",
                    f"-gencode=arch={compute},code={arch}", "-Xptxas=-v"])
    return run([tool(args.clang, "clang++-19"), "-x", "cuda", *common, "-O3", "-ffp-contract=off",
                "-Wno-unknown-cuda-version", f"--cuda-path={cuda12(args)}",
                f"--cuda-gpu-arch={arch}", "--cuda-device-only", "-Xcuda-ptxas", "-v"])


Usage = collections.namedtuple("Usage", "registers stack stores loads")  # stores, loads: None where not known


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


def by_arch(text):
    """A dump's text for each architecture in the object."""
    parts, arch = collections.defaultdict(list), None
    for line in text.splitlines():
        if m := re.match(r"arch = (\S+)", line):
            arch = m[1]
        elif line.startswith("Fatbin "):
            arch = None
        elif arch:
            parts[arch].append(line)
    return parts


def usages_in(lines):
    result, name = {}, None
    for line in lines:
        if m := re.search(r"Function (\S+):$", line):
            name = m[1]
        elif m := re.search(r"REG:(\d+) STACK:(\d+)", line):
            if name:
                result[name] = Usage(int(m[1]), int(m[2]), None, None)
            name = None
    return result


class Code:
    """What a kernel's instructions show."""

    def __init__(self):
        self.matrix = collections.Counter()
        self.miscompiled = []

    def add(self, line):
        if any(mark in line for mark in MARKED) and (m := MATRIX.search(line)):
            self.matrix[m[1]] += 1
        elif ".RELU" in line and MISCOMPILED.search(line):
            self.miscompiled.append(line.strip())


def instructions(lines):
    """Of each function of a disassembly."""
    codes, code = collections.defaultdict(Code), Code()
    for line in lines:
        if m := re.search(r"Function : (\S+)|^\.text\.(\S+):|\.section\s+\.text\.([^,\s]+)", line):
            code = codes[m[1] or m[2] or m[3]]
        else:
            code.add(line)
    return codes


def readable(symbols):
    filt = shutil.which("c++filt")
    if filt is None or not symbols:
        return dict(zip(symbols, symbols))
    text = subprocess.run([filt, *symbols], capture_output=True, text=True).stdout.splitlines()
    names = [re.sub(r"nibble::|cuda::|\(anonymous namespace\)::|^void ", "", t).split("(nib")[0] for t in text]
    return dict(zip(symbols, [n.rsplit("(", 1)[0] if n.endswith(")") else n for n in names]))


def source_name(file):
    return re.sub(r"\.(o|obj)$", "", pathlib.Path(file).name)


def report(file, arch, use, codes):
    """Prints a line for each kernel; number of faults."""
    names, faults = readable(list(use)), 0
    checks = [c[2] for c in CHECKS if c[2] and c[1] == arch and pathlib.Path(c[0]).name == source_name(file)]
    for symbol, u in use.items():
        code, what = codes[symbol], []
        spilled = u.stores or u.loads or u.stores is None and u.stack > STACK_ACCEPTED.get((source_name(file), arch), 0)
        if spilled and (arch == EMULATED[1] or not EMULATED[0].fullmatch(source_name(file))):
            what.append("spills")
        budgets = [most for name, most in BUDGETS.get((source_name(file), arch), []) if re.search(name, names[symbol])]
        if (source_name(file), arch) in BUDGETS and not budgets:
            what.append("no budget of registers for its name")
        what += [f"more than {most} registers" for most in budgets if u.registers > most]
        for check in checks:
            if isinstance(check, dict):
                check = next((must or () for name, must in check.items() if re.search(name, names[symbol])), "check of its name")
            what += ["no " + p.replace("\\", "") for p in ((check,) if isinstance(check, str) else check)
                     if not any(re.match(p, m) for m in code.matrix)]
        what += ["miscompiled: " + line for line in code.miscompiled]
        spills = "" if u.stores is None else f", spills {u.stores}/{u.loads}"
        matrix = "".join(f", {n} x {m}" for m, n in sorted(code.matrix.items()))
        print(f"{arch:8} {names[symbol]:58} {u.registers:3} registers, stack {u.stack}{spills}{matrix}"
              + ("  FAULT: " + "; ".join(what) if what else ""))
        faults += bool(what)
    return faults


def check(file, arch, args, folder):
    """Compiles a file; number of faults."""
    out = os.path.join(folder, pathlib.Path(file).stem + "." + arch)
    if arch == "sm_70":
        disassembler12(args)  # before the compiler runs for nothing
    use = usages(compiled(file, arch, out, args))
    if arch == "sm_70":
        text = run([disassembler12(args), out])
    else:
        text = dump(["-sass", out], args)
    if not use:
        print(f"{arch:8} {file}: FAULT: no kernel found")
    return report(file, arch, use, instructions(text.splitlines())) + (not use)


def disassembler12(args):
    beside = cuda12(args) / "bin/nvdisasm"
    found = tool(args.nvdisasm12 or (str(beside) if beside.exists() else None), "nvdisasm", args.tools)
    release = re.search(r"release (\d+)\.(\d+)", run([found, "--version"]))
    if not release or (int(release[1]), int(release[2])) > (13, 0):
        raise Missing(f"no disassembler of CUDA 12 or 13.0, which know sm_70, but {release and release[0]} ({found})")
    return found


def dump(what, args):
    disassembler = tool(None, "nvdisasm", args.tools)  # cuobjdump looks for it on PATH
    return run([tool(args.cuobjdump, "cuobjdump", args.tools), *what], pathlib.Path(disassembler).parent)


def sections(cubin):
    """Name and code of each function of an ELF64 file."""
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, strings = struct.unpack_from("<HHH", cubin, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    for name, kind, _, _, offset, length in rows:
        at = rows[strings][4] + name
        label = cubin[at:cubin.index(b"\0", at)].decode()
        if kind == 1 and label.startswith(".text."):
            yield label[len(".text."):], cubin[offset:offset + length]


def disassemble(cubins, arch, folder, args):
    """Code of each function of each file. Starting nvdisasm costs half a second: once for all of them."""
    starts, owners, raw = [], [], bytearray()
    for i, cubin in cubins:
        for name, code in sections(cubin.read_bytes()):
            starts.append(len(raw))
            owners.append((i, name))
            raw += code
    codes = collections.defaultdict(lambda: collections.defaultdict(Code))
    if not raw:
        return codes
    file = pathlib.Path(folder) / (arch + ".raw")
    file.write_bytes(raw)
    text = run([tool(None, "nvdisasm", args.tools), "--binary", arch.replace("sm_", "SM"), file])
    instructions_read = 0
    for line in text.splitlines():
        m = re.match(r"\s*/\*([0-9a-f]+)\*/", line)
        instructions_read += bool(m)
        if m and any(mark in line for mark in (*MARKED, ".RELU")):
            i, name = owners[bisect.bisect_right(starts, int(m[1], 16)) - 1]
            codes[i][name].add(line)
    if instructions_read * 16 != len(raw):
        raise SystemExit(f"{arch}: expected {len(raw) // 16} instructions, nvdisasm shows {instructions_read}")
    return codes


def check_objects(args):
    """Reads objects named FILE.cu.o; number of faults."""
    files = [os.path.abspath(o) for o in args.objects if re.search(r"\.cu\.(o|obj)$", o)]
    cuobjdump = tool(args.cuobjdump, "cuobjdump", args.tools)
    tool(None, "nvdisasm", args.tools)
    usage = [by_arch(run([cuobjdump, "-res-usage", o])) for o in files]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for i, o in enumerate(files):
            inside = pathlib.Path(folder) / str(i)
            inside.mkdir()
            run([cuobjdump, "-xelf", "all", o], cwd=inside)
        cubins = [(i, c) for i in range(len(files)) for c in sorted((pathlib.Path(folder) / str(i)).iterdir())]
        of = {a: [c for c in cubins if c[1].name.endswith(f".{a}.cubin")] for a in args.arch}
        codes = dict(zip(args.arch, pool.map(lambda a: disassemble(of[a], a, folder, args), args.arch)))
    faults = 0
    for arch in args.arch:
        kernels, seen = 0, set()
        for i, file in enumerate(files):
            use = usages_in(usage[i].get(arch, []))
            kernels += len(use)
            if use:
                seen.add(source_name(file))
            faults += report(file, arch, use, codes[arch][i])
        for file in sorted({pathlib.Path(c[0]).name for c in CHECKS if c[2] and c[1] == arch} - seen):
            print(f"{arch:8} {file}: FAULT: no kernel found")
            faults += 1
        print(f"{arch:8} {kernels} kernels")
    return faults


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="*", help="only these of the checked files")
    p.add_argument("--objects", nargs="+", metavar="FILE.cu.o", help="read these instead of compiling")
    p.add_argument("--arch", nargs="+", default=["sm_90a", "sm_120a"], help="architectures that the objects hold")
    p.add_argument("--tools", nargs="+", default=[], metavar="DIR", help="look here for cuobjdump and nvdisasm too")
    p.add_argument("--nvcc", help="default: the one on PATH")
    p.add_argument("--cuobjdump", help="of CUDA 12.8 or newer; default: the one on PATH")
    p.add_argument("--clang", help="default: clang++-19")
    p.add_argument("--cuda12", metavar="DIR", help="CUDA 12 folder for clang; default: /usr/local/cuda-12.*")
    p.add_argument("--nvdisasm12", help="a disassembler that knows sm_70")
    p.add_argument("--require-sm70", action="store_true")
    args = p.parse_args()
    unknown = [f for f in args.files if not any(c[0].endswith(f) for c in CHECKS)]
    if unknown:
        p.error("expected files of the table of checks, found " + ", ".join(unknown))
    faults, checked = 0, 0
    if args.objects:
        try:
            faults, checked = check_objects(args), 1
        except Missing as why:
            print(f"skipped: {why}")
            return SKIPPED
    else:
        with tempfile.TemporaryDirectory() as folder:
            for file, arch, _ in CHECKS:
                if args.files and not any(file.endswith(f) for f in args.files):
                    continue
                try:
                    faults += check(file, arch, args, folder)
                    checked += 1
                except Missing as why:
                    needed = arch == "sm_70" and args.require_sm70
                    print(f"{arch:8} {file}: {'FAULT' if needed else 'skipped'}: {why}")
                    faults += needed
    print(f"{faults} faults")
    return 1 if faults else 0 if checked else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
