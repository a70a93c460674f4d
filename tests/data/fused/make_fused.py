"""Fused sums of matrix units by big integers and fractions: fused.safetensors, for tests/cpu.

Written from the rules alone (core/numerics/matrix_order.h), without the code that it tests.
Each family has blocks of 16 a vectors, 16 b vectors and 16 accumulators; result [i, j] is the fused
sum of a[i], b[j] and c[(i + j) % 16].      python3 make_fused.py fused.safetensors
"""
import json
import random
import struct
import sys
from fractions import Fraction

POOL = 16


class Format:
    def __init__(self, exponent_bits, mantissa_bits, code="H", infinite=True):
        self.eb, self.mb, self.code, self.infinite = exponent_bits, mantissa_bits, code, infinite
        self.bias = (1 << (exponent_bits - 1)) - 1
        self.sign = 1 << (exponent_bits + mantissa_bits)

    def decode(self, word):
        """(kind, value, exponent): kind finite, inf or nan."""
        field = word >> self.mb & (1 << self.eb) - 1
        mantissa = word & (1 << self.mb) - 1
        sign = -1 if word & self.sign else 1
        if field == (1 << self.eb) - 1 and self.infinite:
            return ("nan" if mantissa else "inf"), sign, None
        if word & self.sign - 1 == self.sign - 1:  # e4m3: all ones, and no infinity
            return "nan", sign, None
        e = max(field, 1) - self.bias
        whole = mantissa + ((1 << self.mb) if field else 0)
        return "finite", sign * Fraction(whole) * Fraction(2) ** (e - self.mb), e


BF16, F16, F32 = Format(8, 7), Format(5, 10), Format(8, 23)
E4M3 = Format(4, 3, "B", infinite=False)
TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)
NAN, INF = 0x7FFFFFFF, 0x7F800000


def to_f32_truncated(value, significant=24):
    """Bits of value, truncated toward zero to what float32 holds, and to so many significant bits."""
    if value == 0:
        return 0
    sign = 0x80000000 if value < 0 else 0
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** e > value:
        e -= 1
    if e > 127:
        return sign | INF
    unit = Fraction(2) ** (max(e, -126) - 23)
    whole = int(value / unit)
    drop = 24 - significant
    if e < -126:
        assert drop == 0  # no rule is known; sums that start from +0 do not get there
        return sign | whole if whole else 0  # what truncates to zero is +0: measured on an H200
    return sign | (e + 127) << 23 | (whole - (1 << 23)) >> drop << drop


def fused(fmt, a, b, c, f, significant=24):
    infinities, terms = set(), []
    for x, y in zip(a, b):
        (kx, vx, ex), (ky, vy, ey) = fmt.decode(x), fmt.decode(y)
        if "nan" in (kx, ky):
            return NAN
        if "inf" in (kx, ky):
            if vx == 0 or vy == 0:
                return NAN
            infinities.add((vx > 0) == (vy > 0))
        else:
            terms.append((vx * vy, ex + ey))
    kc, vc, ec = F32.decode(c)
    if kc == "nan":
        return NAN
    if kc == "inf":
        infinities.add(vc > 0)
    else:
        terms.append((vc, ec))
    if infinities:
        return NAN if len(infinities) == 2 else INF if True in infinities else INF | 0x80000000
    terms = [t for t in terms if t[0] != 0]
    if not terms:
        return 0
    m = max(max(e for _, e in terms), -133)  # the floor: measured on an H200
    total = sum(int(v * Fraction(2) ** (f - m)) for v, _ in terms)
    return to_f32_truncated(total * Fraction(2) ** (m - f), significant)


def block_scaled(a, b, c, f=35):
    """a, b: (64 codes of e2m1, 4 scale bytes of ue4m3, whose bit 7 means nothing)."""
    kc, vc, ec = F32.decode(c)
    scales = [[E4M3.decode(byte & 127) for byte in v[1]] for v in (a, b)]
    if kc == "nan" or any(kind == "nan" for row in scales for kind, _, _ in row):
        return NAN
    if kc == "inf":
        return c
    terms = [(vc, ec)] if vc != 0 else []
    for g in range(4):
        (_, va, ea), (_, vb, eb) = scales[0][g], scales[1][g]
        if va == 0 or vb == 0:
            continue  # such a block takes no part; one whose sum is zero does
        dot = Fraction(0)
        for x, y in zip(a[0][16 * g:16 * g + 16], b[0][16 * g:16 * g + 16]):
            product = Fraction(TWICE_E2M1[x & 7] * TWICE_E2M1[y & 7], 4)
            dot += product if (x ^ y) & 8 == 0 else -product
        terms.append((dot * va * vb, ea + eb))
    if not terms:
        return 0
    m = max(e for _, e in terms)
    return to_f32_truncated(sum(int(v * Fraction(2) ** (f - m)) for v, _ in terms) * Fraction(2) ** (m - f))


def word(fmt, rng, low, high):
    """A random normal word with its exponent in [low, high], cut to the format."""
    e = min(max(rng.randint(low, high), 1 - fmt.bias), fmt.bias)
    return (rng.getrandbits(1) * fmt.sign) | (e + fmt.bias) << fmt.mb | rng.getrandbits(fmt.mb)


def subnormal(fmt, rng):
    return (rng.getrandbits(1) * fmt.sign) | rng.randrange(1, 1 << fmt.mb)


def largest(fmt, rng):
    top = (1 << fmt.eb) - 1 << fmt.mb if fmt.infinite else fmt.sign - 1
    return (rng.getrandbits(1) * fmt.sign) | top - 1 - rng.randrange(3)


def infinity(fmt, rng):
    if not fmt.infinite:
        return largest(fmt, rng)
    return (rng.getrandbits(1) * fmt.sign) | ((1 << fmt.eb) - 1 << fmt.mb)


def nan(fmt, rng):
    if not fmt.infinite:
        return (rng.getrandbits(1) * fmt.sign) | fmt.sign - 1
    return infinity(fmt, rng) | 1 + rng.randrange((1 << fmt.mb) - 1)


def zero(fmt, rng):
    return rng.getrandbits(1) * fmt.sign


def block(fmt, k, style, rng):
    wide = fmt.bias - 2
    low, high = {0: (-3, 3), 1: (-12, 12), 2: (-40, 40), 3: (-wide, wide)}.get(style, (-4, 4))

    def operand(other_half):
        r = rng.random()
        if style == 4 and r < 0.4:
            return zero(fmt, rng)
        if style == 5 and r < 0.6:
            return subnormal(fmt, rng)
        if style == 6 and r < 0.7:
            return largest(fmt, rng)
        if style == 7 and r < 0.04:
            return rng.choice([infinity, infinity, nan, zero])(fmt, rng)
        if style == 8:  # small integers: sums that cancel
            return word(fmt, rng, 0, 1) & ~((1 << fmt.mb) - 1)
        if style == 9:  # all of one sign and near 2: the largest sums
            return fmt.bias << fmt.mb | (1 << fmt.mb) - 1 - rng.randrange(2)
        if style == 10:  # a and b at opposite ends
            e = wide - rng.randrange(8)
            return word(fmt, rng, -e if other_half else e, -e if other_half else e)
        if style == 11:
            return rng.choice([zero, zero, subnormal])(fmt, rng)
        return word(fmt, rng, low, high)

    a = [[operand(False) for _ in range(k)] for _ in range(POOL)]
    b = [[operand(True) for _ in range(k)] for _ in range(POOL)]
    if style == 8:  # half of the vectors cancel exactly
        for v in a[::2]:
            v[k // 2:] = v[:k // 2]
        for v in b[::2]:
            v[k // 2:] = [w ^ fmt.sign for w in v[:k // 2]]
    c = []
    for i in range(POOL):
        c.append([0, 0x80000000, word(F32, rng, 2 * low, 2 * high), word(F32, rng, -60, 60),
                  subnormal(F32, rng) if fmt.infinite else word(F32, rng, -126, -120),
                  word(F32, rng, -126, -90), word(F32, rng, 100, 127),
                  word(F32, rng, 0, 2)][i % 8])
    if style == 7:
        c[2], c[3], c[11] = 0x7F800000, 0xFF800000, 0x7FC00001
    if style == 9:
        c = [0x407FFFFF - rng.randrange(4) for _ in c]
    return a, b, c


def fp4_vector(style, rng, half):
    low, high = {0: (6, 8), 1: (0, 15), 2: (0, 1), 3: (14, 15)}.get(style, (5, 9))
    scales = []
    for g in range(4):
        field = rng.randint(low, high)
        byte = field << 3 | rng.randrange(8 if field < 15 else 7)
        if style == 4 and rng.random() < 0.4:
            byte = 0
        if style == 5:  # from one end of the exponents to the other
            byte = rng.choice([1, 2, 7, 0x7E, 0x78])
        if style == 6 and rng.random() < 0.04:
            byte = 0x7F
        if style == 7:
            byte |= rng.getrandbits(1) << 7
        scales.append(byte)
    codes = [rng.randrange(16) for _ in range(64)]
    for g in range(4):
        if style in (4, 8) and rng.random() < 0.3:
            codes[16 * g:16 * g + 16] = [rng.choice([0, 8]) for _ in range(16)]
    if style == 9:  # the largest sums, of one sign or of both
        codes = [7 if rng.random() < 0.95 else 15 for _ in range(64)]
        scales = [rng.choice([0x7E, 0x7D, 0x0F]) for _ in range(4)]
    if style == 10 and rng.random() < 0.6:  # cancels against a vector whose halves are equal
        codes[32:] = [c ^ (8 * half) for c in codes[:32]]
        scales[2:] = scales[:2]
    return codes, scales


def fp4_accumulators(style, rng):
    c = [[0, 0x80000000, word(F32, rng, -8, 16), word(F32, rng, -60, 60), subnormal(F32, rng),
          word(F32, rng, -45, -10), word(F32, rng, 16, 60), word(F32, rng, 10, 13)][i % 8]
         for i in range(POOL)]
    if style == 11:  # far above and far below; overflow is not within reach of one sum
        c = [rng.choice([word(F32, rng, 30, 50), word(F32, rng, -126, -40), largest(F32, rng)]) for _ in c]
    if style == 6:
        c[2], c[3], c[11] = 0x7F800000, 0xFF800000, 0x7FC00001
    return c


def fp4_family(rng, rounds):
    parts = {"a": b"", "b": b"", "a_scales": b"", "b_scales": b"", "c": b"", "result": b""}
    for style in list(range(12)) * rounds:
        a = [fp4_vector(style, rng, 0) for _ in range(POOL)]
        b = [fp4_vector(style, rng, 1) for _ in range(POOL)]
        c = fp4_accumulators(style, rng)
        for name, vectors in (("a", a), ("b", b)):
            for codes, scales in vectors:  # the low nibble is the even k
                parts[name] += bytes(codes[k] | codes[k + 1] << 4 for k in range(0, 64, 2))
                parts[name + "_scales"] += bytes(scales)
        parts["c"] += struct.pack(f"<{POOL}I", *c)
        for i in range(POOL):
            parts["result"] += struct.pack(
                f"<{POOL}I", *(block_scaled(a[i], b[j], c[(i + j) % POOL]) for j in range(POOL)))
    return parts


def main(path):
    rng = random.Random(20261130)
    tensors, products = {}, 0
    for name, fmt, k, f, rounds, significant in (
            ("bf16_16_25", BF16, 16, 25, 2, 24), ("f16_16_25", F16, 16, 25, 1, 24),
            ("f16_4_23", F16, 4, 23, 1, 24), ("e4m3_32_13", E4M3, 32, 13, 4, 14)):
        parts = {"a": b"", "b": b"", "c": b"", "result": b""}
        for style in list(range(12)) * rounds:
            a, b, c = block(fmt, k, style, rng)
            parts["a"] += b"".join(struct.pack(f"<{k}{fmt.code}", *v) for v in a)
            parts["b"] += b"".join(struct.pack(f"<{k}{fmt.code}", *v) for v in b)
            parts["c"] += struct.pack(f"<{POOL}I", *c)
            for i in range(POOL):
                parts["result"] += struct.pack(
                    f"<{POOL}I", *(fused(fmt, a[i], b[j], c[(i + j) % POOL], f, significant)
                                          for j in range(POOL)))
                products += POOL
        for part, data in parts.items():
            tensors[f"{name}.{part}"] = data
    for part, data in fp4_family(rng, 4).items():
        tensors[f"mxf4nvf4_64_35.{part}"] = data
    products += 4 * 12 * POOL * POOL
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    print(products, "fused sums")


main(sys.argv[1])
