#!/usr/bin/env python3
"""PyTorch's attention beside nibble: scaled_dot_product_attention on the shapes of `nibble bench ops --op attention`.

Forces the backends cuDNN and flash in turn, bf16, causal, and times each call as a replayed CUDA graph, so that its
launches cost no host time. Where a backend takes no query heads that share keys (enable_gqa), keys and values are
expanded first, untimed, and the row says so: it then reads them heads / kv_heads times. Prints the table that nibble
prints: TFLOP/s counts a prompt's pairs at half, GB/s the keys and values that a step of decoding needs.

Needs PyTorch with CUDA on the path.
"""
import argparse
import statistics
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    MISSING = None
except ImportError as why:  # said by main, so that --help works without it
    MISSING = why.name

SHAPES = {"27b": (24, 4, 256), "27b-tp2": (12, 2, 256), "27b-tp4": (6, 1, 256)}


def microseconds(forward, repetitions):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = forward()
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


def measure(backend, heads, kv_heads, dim, sequences, rows, depth, repetitions):
    """Microseconds, and how keys were shared; or None and why not."""
    normal = lambda n, t: torch.randn(sequences, n, t, dim, device="cuda", dtype=torch.bfloat16)
    why = ""
    for shared in (True, False):
        if not shared and heads == kv_heads:
            break
        try:
            q, k, v = normal(heads, rows), normal(kv_heads, depth + rows), normal(kv_heads, depth + rows)
            if not shared:
                k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
            with torch.no_grad(), sdpa_kernel(backend):
                forward = lambda: scaled_dot_product_attention(q, k, v, is_causal=depth == 0, enable_gqa=shared)
                return microseconds(forward, repetitions), "shared keys" if shared else "expanded keys"
        except torch.cuda.OutOfMemoryError:
            why = "no memory for expanded keys" if not shared else "no memory"
        except (RuntimeError, TypeError) as e:
            why = str(e).strip().splitlines()[0]
        finally:
            q = k = v = None
            torch.cuda.empty_cache()
    return None, why


def whole_numbers(text):
    return [int(n) for n in text.split(",")]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--shapes", default="27b", choices=SHAPES)
    p.add_argument("-t", "--tokens", type=whole_numbers, default=[], help="rows of a prompt, separated by commas")
    p.add_argument("--depth", type=whole_numbers, default=[], help="positions behind which a step decodes")
    p.add_argument("--sequences", type=whole_numbers, default=[1], help="that run together")
    p.add_argument("-r", "--repetitions", type=int, default=9)
    args = p.parse_args()
    if args.repetitions < 1:
        p.error(f"--repetitions: expected 1 or more, found {args.repetitions}")
    if any(n < 1 for n in args.tokens + args.depth + args.sequences):
        p.error("--tokens, --depth, --sequences: expected numbers from 1 on")
    if MISSING:
        sys.exit(f"expected PyTorch, found no Python module {MISSING}")
    if not torch.cuda.is_available():
        sys.exit("expected a CUDA card, PyTorch finds none")
    if not args.tokens and not args.depth:
        args.tokens = [512, 2048, 8192, 16384]
    heads, kv_heads, dim = SHAPES[args.shapes]
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}\n")
    print("| heads | head size | sequences | T | depth | us | TFLOP/s | GB/s of KV | kernel |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    rows_of = [(t, 0) for t in args.tokens] + [(1, d) for d in args.depth]
    for sequences in args.sequences:
        for rows, depth in rows_of:
            pairs = depth + 1 if depth else rows * rows / 2
            flops = 4 * pairs * sequences * heads * dim
            kv_bytes = 4 * sequences * (depth + rows) * kv_heads * dim
            for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
                us, how = measure(backend, heads, kv_heads, dim, sequences, rows, depth, args.repetitions)
                of = f"| {heads}/{kv_heads} | {dim} | {sequences} | {rows} | {depth or '-'} |"
                if us is None:
                    print(of, f"- | - | - | {name}: {how} |", flush=True)
                else:
                    rate = f"{kv_bytes / us * 1e-3:.1f}" if depth else "-"
                    print(of, f"{us:.2f} | {flops / us * 1e-6:.2f} | {rate} | {name}, {how} |", flush=True)


if __name__ == "__main__":
    main()
