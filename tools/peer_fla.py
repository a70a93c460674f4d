#!/usr/bin/env python3
"""flash-linear-attention beside nibble: chunk_gated_delta_rule on the shapes of `nibble bench ops --op delta`.

Times it as a replayed CUDA graph, so that its launches cost no host time, and prints it in microseconds. With
--saved FILE (of `nibble bench ops --op delta --save`), also how far its outputs and nibble's lie from the recurrence
in float64 on those inputs (relative L2).

Needs PyTorch with CUDA, Triton and the package flash-linear-attention (with fla-core) on the path.
"""
import argparse
import pathlib
import statistics
import sys

try:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from safetensors.torch import load_file
    MISSING = None
except ImportError as why:  # said by main, so that --help works without them
    MISSING = why.name

DIM = 128
SHAPES = {"27b": (16, 48), "27b-tp2": (8, 24)}


def inputs(sequences, rows, key_heads, value_heads):
    gen = torch.Generator("cuda").manual_seed(1)
    normal = lambda heads: torch.randn(sequences, rows, heads, DIM, device="cuda", generator=gen)
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)
    uniform = lambda: torch.rand(sequences, rows, value_heads, device="cuda", generator=gen)
    q, k, v = unit(normal(key_heads)) / DIM**0.5, unit(normal(key_heads)), normal(value_heads)
    return [*(x.to(torch.bfloat16) for x in (q, k, v)), -0.2 * uniform(), 0.1 + 0.8 * uniform()]


def forward(q, k, v, g, beta):
    return chunk_gated_delta_rule(q, k, v, g, beta, scale=1.0, output_final_state=True)


def microseconds(args, repetitions):
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                forward(*args)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = forward(*args)
        times = []
        for _ in range(repetitions):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(10):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(100 * begin.elapsed_time(end))
        del kept
    return statistics.median(times)


def recurrence(q, k, v, g, beta):
    """float64; the gated delta rule of arXiv 2412.06464, a row at a time."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    ratio = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(ratio, dim=2) for x in (q, k))
    s = torch.zeros(v.shape[0], v.shape[2], DIM, v.shape[3], dtype=torch.float64, device=v.device)
    out = torch.empty_like(v)
    for t in range(v.shape[1]):
        s = s * g[:, t].exp()[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * u[:, :, None, :]
        out[:, t] = torch.einsum("bhkv,bhk->bhv", s, q[:, t])
    return out


def compare(path):
    saved = {name: x.cuda() for name, x in load_file(path).items()}
    args = [saved[name] for name in ("q", "k", "v", "g", "beta")]
    want = recurrence(*args)
    off = lambda got: ((got.double() - want).norm() / want.norm()).item()
    with torch.no_grad():
        theirs, ours = off(forward(*args)[0]), off(saved["y"])
    print(f"{path}: relative L2 from float64: nibble {ours:.3e}, flash-linear-attention {theirs:.3e}")
    return ours <= theirs


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--saved", action="append", default=[], help="inputs and outputs of nibble, to compare errors")
    p.add_argument("-r", "--repetitions", type=int, default=9)
    p.add_argument("--no-times", action="store_true")
    args = p.parse_args()
    if args.repetitions < 1:
        p.error(f"--repetitions: expected 1 or more, found {args.repetitions}")
    for path in args.saved:
        if not pathlib.Path(path).is_file():
            p.error(f"--saved: expected a file that nibble saved, found no {path}")
    if MISSING:
        sys.exit(f"expected PyTorch, flash-linear-attention and safetensors, found no Python module {MISSING}")
    if not torch.cuda.is_available():
        sys.exit("expected a CUDA card, PyTorch finds none")
    if not args.no_times:
        print("| heads | sequences x rows | flash-linear-attention, us |\n| --- | ---: | ---: |")
        for shape, sequences, rows in [("27b", 1, 2048), ("27b", 1, 8192), ("27b", 1, 16384), ("27b", 1, 32768),
                                       ("27b", 4, 8192), ("27b-tp2", 1, 8192)]:
            heads = SHAPES[shape]
            time = microseconds(inputs(sequences, rows, *heads), args.repetitions)
            print(f"| {heads[0]}/{heads[1]} of {DIM} | {sequences} x {rows} | {time:.1f} |", flush=True)
    if not all([compare(path) for path in args.saved]):
        sys.exit("nibble's outputs lie further from float64 than flash-linear-attention's")


if __name__ == "__main__":
    main()
