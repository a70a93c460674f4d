#!/usr/bin/env python3
"""Writes a GGUF file with invented weights in the shape of one of nibble's synthetic models.

With it llama.cpp's llama-bench runs what `nibble bench --synthetic SHAPE` runs, without a download.

The shapes are those of models/registry.cpp. As in nibble's synthetic models every matrix has the format that
--format names, the head (output.weight) included; the embedding (token_embd) and the two small projections
ssm_alpha and ssm_beta are BF16, norms and other vectors F32. Values are random, with the size and the ranges of
nibble's; they are not the same numbers. The file has no tokenizer ("no_vocab"): llama-bench takes token numbers,
programs that read text do not run with it. There is no draft head.
"""
import argparse
import json
import math
import os
import pathlib
import re
import sys
import zlib

try:
    import gguf
    import numpy as np
    MISSING = None
except ImportError as why:  # said by main, so that --help works without them
    MISSING = why.name

EXAMPLES = """examples:
  tools/peer_gguf.py --shape qwen3_5-27b --layers 4 --format NVFP4 27b4-nvfp4.gguf
  tools/peer_gguf.py --shape qwen3_5-2b --format Q4_0 2b-q4_0.gguf
  llama-bench -m 27b4-nvfp4.gguf -p 128,512 -n 32 -t 2 -r 3
  nibble bench --synthetic qwen3_5-27b --layers 4 --device cpu --threads 2 -p 128,512 -n 32 -d 0 -b 1 -r 3"""

REGISTRY = pathlib.Path(__file__).resolve().parent.parent / "models" / "registry.cpp"
ARCHITECTURE = "qwen35"
MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
CHUNK_BYTES = 64 << 20
UNIFORM_RMS = 3**-0.5  # of U(-1, 1); a matrix has this over sqrt(columns), so that outputs are as large as inputs
E2M1_RMS = 2.9261749776799063  # of the 16 codes, all as likely
FINE_SCALES = range(0x30, 0x40)  # e4m3 codes of 0.5 .. 1.875
FINE_RMS = math.sqrt(sum((1 + (c & 7) / 8) ** 2 * 4.0 ** ((c >> 3) - 7) for c in FINE_SCALES) / len(FINE_SCALES))


class Refused(Exception):
    pass


class Random:
    """Bytes that depend on the seed and the name only."""

    def __init__(self, seed, name):
        self.bits = np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def bytes(self, count):
        return self.bits.random_raw(-(-count // 8)).view(np.uint8)[:count]

    def uniform(self, shape, middle, half):
        words = self.bytes(4 * math.prod(shape)).view(np.int32).reshape(shape)
        return (middle + half * (words.astype(np.float64) * 2.0**-31)).astype(np.float32)


# Each makes `blocks` blocks of its format, for a matrix of `columns`.
def nvfp4(random, blocks, columns):
    made = random.bytes(blocks * 36).reshape(blocks, 36)
    made[:, :4] = (made[:, :4] & 15) + FINE_SCALES[0]
    return made


def with_block_scale(made, middle):
    """The first two bytes of a block become an F16 scale within a quarter of `middle`, of either sign: the mean of
    Q4_0's codes is -0.5, and with one sign all outputs would lean the same way."""
    scales = middle * (0.75 + made[:, 0].astype(np.float32) / 510) * np.where(made[:, 1] & 1, 1, -1)
    made[:, :2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return made


# Twice the size of the others: at 17408 columns the scales would be subnormal, which real ones seldom are.
def q8_0(random, blocks, columns):
    made = random.bytes(blocks * 34).reshape(blocks, 34)
    codes = made[:, 2:].view(np.int8)
    np.maximum(codes, -127, out=codes)  # what a quantiser makes: -127 .. 127
    return with_block_scale(made, 2 / (127 * math.sqrt(columns)))


def q4_0(random, blocks, columns):
    made = random.bytes(blocks * 18).reshape(blocks, 18)
    return with_block_scale(made, 1 / (8 * math.sqrt(columns)))


def bf16(random, blocks, columns):
    values = random.bytes(blocks * 2).view(np.int16).astype(np.float32)
    values *= np.float32(2.0**-15 / math.sqrt(columns))
    return (values.view(np.uint32) >> 16).astype(np.uint16)


MAKERS = {"NVFP4": nvfp4, "Q8_0": q8_0, "Q4_0": q4_0, "BF16": bf16}


def read_shapes():
    """The presets of models/registry.cpp, by name."""
    found = re.findall(r'\{"([\w.-]+)", R"\((.*?)\)"\}', REGISTRY.read_text(), re.DOTALL)
    if not found:
        raise Refused(f'{REGISTRY}: expected presets like {{"name", R"({{...}})"}}, found none')
    return {name: json.loads(text) for name, text in found}


def list_tensors(c, layers, form):
    """(name, format, shape as rows of columns, middle and half of a vector's values), in the file's order."""
    hidden, inner, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value_heads, value_dim = c["linear_num_value_heads"], c["linear_value_head_dim"]
    values, taps = value_heads * value_dim, c["linear_conv_kernel_dim"]

    def matrix(name, rows, columns, f=form):
        return name + ".weight", f, (rows, columns), None

    def vector(name, shape, middle=1.0, half=0.1):  # GGUF stores norms around 1
        return name, "F32", shape, (middle, half)

    yield matrix("token_embd", vocab, hidden, "BF16")
    for i in range(layers):
        b = f"blk.{i}."
        yield vector(b + "attn_norm.weight", (hidden,))
        if (i + 1) % c["full_attention_interval"] == 0:
            yield matrix(b + "attn_q", 2 * heads * dim, hidden)
            yield matrix(b + "attn_k", kv_heads * dim, hidden)
            yield matrix(b + "attn_v", kv_heads * dim, hidden)
            yield matrix(b + "attn_output", hidden, heads * dim)
            yield vector(b + "attn_q_norm.weight", (dim,))
            yield vector(b + "attn_k_norm.weight", (dim,))
        else:
            yield matrix(b + "attn_qkv", 2 * keys + values, hidden)
            yield matrix(b + "attn_gate", values, hidden)
            yield matrix(b + "ssm_alpha", value_heads, hidden, "BF16")
            yield matrix(b + "ssm_beta", value_heads, hidden, "BF16")
            yield matrix(b + "ssm_out", hidden, values)
            yield vector(b + "ssm_conv1d.weight", (2 * keys + values, taps), 0.0, taps**-0.5)
            yield vector(b + "ssm_a", (value_heads,), -8.5, 7.5)  # decay rates from 1 to 16
            yield vector(b + "ssm_dt.bias", (value_heads,), -3.0, 2.0)
            yield vector(b + "ssm_norm.weight", (value_dim,))
        yield vector(b + "post_attention_norm.weight", (hidden,))
        yield matrix(b + "ffn_gate", inner, hidden)
        yield matrix(b + "ffn_up", inner, hidden)
        yield matrix(b + "ffn_down", hidden, inner)
    yield vector("output_norm.weight", (hidden,))
    if not c["tie_word_embeddings"]:
        yield matrix("output", vocab, hidden)


def with_tensor_scales(tensors):
    """NVFP4 has one more factor for each matrix, in a tensor of its own."""
    for name, form, shape, values in tensors:
        yield name, form, shape, values
        if form == "NVFP4":
            factor = UNIFORM_RMS / (E2M1_RMS * FINE_RMS * math.sqrt(shape[1]))
            yield name.removesuffix("weight") + "scale", "F32", (1,), (factor, 0.0)


def describe(writer, c, name, layers, form):
    rope = c["rope_parameters"]
    rotary = round(c["head_dim"] * rope["partial_rotary_factor"])
    half = rotary // 2
    writer.add_name(f"{name}, {layers} layers, invented weights")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{form}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(layers)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(rotary)
    writer.add_rope_dimension_sections([(half + 2) // 3, (half + 1) // 3, half // 3, 0])
    writer.add_full_attention_interval(c["full_attention_interval"])
    writer.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(c["linear_key_head_dim"])
    writer.add_ssm_group_count(c["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(c["linear_num_value_heads"])
    writer.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])
    writer.add_tokenizer_model("no_vocab")


def size_of(name, form, shape):
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    if shape[-1] % block:
        raise Refused(f"{name}: expected columns that are a multiple of {block} for {form}, found {shape[-1]}")
    return math.prod(shape) // block * block_bytes


def write_tensor(out, seed, name, form, shape, values):
    random = Random(seed, name)
    if form == "F32":
        out.write(random.uniform(shape, *values).data)
        return
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    left = math.prod(shape) // block
    while left:
        now = min(left, CHUNK_BYTES // block_bytes // 8 * 8)
        out.write(MAKERS[form](random, now, shape[1]).data)
        left -= now


def write(path, c, name, layers, form, seed):
    tensors = list(with_tensor_scales(list_tensors(c, layers, form)))
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    describe(writer, c, name, layers, form)
    sizes = [size_of(*t[:3]) for t in tensors]
    for (tensor, kind, shape, _), size in zip(tensors, sizes):
        writer.add_tensor_info(tensor, shape, np.float32, size, gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    for tensor, size in zip(tensors, sizes):
        write_tensor(out, seed, *tensor)
        writer.write_padding(out, size)
    writer.close()
    return len(tensors)


def parse():
    p = argparse.ArgumentParser(prog="peer_gguf", description=__doc__, epilog=EXAMPLES,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", type=pathlib.Path, metavar="FILE", help="the GGUF file to write; an old one is replaced")
    p.add_argument("--shape", metavar="NAME", required=True, help="as in nibble bench --synthetic NAME")
    p.add_argument("--layers", type=int, default=0, metavar="N",
                   help="layers of the shape; 0 (default): its own number")
    p.add_argument("--format", default="NVFP4", metavar="NAME",
                   help=f"of the matrices: {', '.join(MAKERS)} (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="another number, other weights (default: 0)")
    args = p.parse_args()
    if args.format not in MAKERS:
        p.error(f"--format: expected one of {', '.join(MAKERS)}, found {args.format}")
    if not 0 <= args.layers <= 1024:
        p.error(f"--layers: expected 0 to 1024, found {args.layers}")
    if args.seed < 0:
        p.error(f"--seed: expected 0 or more, found {args.seed}")
    shapes = read_shapes()
    if args.shape not in shapes:
        p.error(f"--shape: expected one of {', '.join(shapes)}, found {args.shape}")
    return args, shapes[args.shape]


def main():
    try:
        args, config = parse()
        if MISSING:
            raise Refused(f"expected the Python packages gguf and numpy (pip install gguf numpy), found no {MISSING}")
        if config["model_type"] not in MODEL_TYPES:
            raise Refused(f"{args.shape}: expected model_type {' or '.join(MODEL_TYPES)}, "
                          f"found {config['model_type']}")
        if not hasattr(gguf.GGMLQuantizationType, args.format):
            raise Refused(f"expected a gguf package that knows {args.format} (0.19 does), found an older one")
        # A name of its own until it is whole, so that no half file is taken for a model.
        part = args.file.with_name(args.file.name + ".part")
        try:
            layers = args.layers or config["num_hidden_layers"]
            count = write(part, config, args.shape, layers, args.format, args.seed)
            os.replace(part, args.file)
        finally:
            part.unlink(missing_ok=True)
    except Refused as why:
        print(f"peer_gguf: {why}", file=sys.stderr)
        return 1
    except OSError as why:
        print(f"peer_gguf: {why.filename}: {why.strerror}", file=sys.stderr)
        return 1
    print(f"{args.file}: {count} tensors, {args.file.stat().st_size / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
