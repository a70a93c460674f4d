// The state arena: where each layer's arrays lie.
#include "backends/cuda/loaded.h"
#include "core/base/bytes.h"

namespace nibble::cuda {
namespace {

constexpr std::int32_t kMaxConvKernel = 32;

std::uint64_t product(std::initializer_list<std::int64_t> factors, const char* what) {
  std::uint64_t n = 1;
  for (const std::int64_t f : factors) {
    const auto next = checked_mul(n, static_cast<std::uint64_t>(f));
    if (f < 0 || !next || *next > (std::uint64_t{1} << 62)) {
      throw Error(ErrorCode::out_of_memory,
                  std::string("[cuda] ") + what + ": too large to address");
    }
    n = *next;
  }
  return n;
}

std::uint64_t element(DType t) {
  return static_cast<std::uint64_t>(dtype_bits(t)) / 8;
}

void check_shape(const DeltaShape& d) {
  if (d.key_heads < 1 || d.value_heads < 1 || d.key_dim < 1 || d.value_dim < 1 ||
      d.value_heads % d.key_heads != 0 || d.conv_kernel < 1 || d.conv_kernel > kMaxConvKernel) {
    throw Error(
        ErrorCode::unsupported,
        "[cuda] delta net: expected heads and sizes >= 1, value heads a multiple of key heads and "
        "a convolution of 1 to " +
            std::to_string(kMaxConvKernel) + " taps, got " + std::to_string(d.key_heads) +
            " key heads of " + std::to_string(d.key_dim) + ", " + std::to_string(d.value_heads) +
            " value heads of " + std::to_string(d.value_dim) + ", " +
            std::to_string(d.conv_kernel) + " taps");
  }
}

// Elements of one delta layer's arrays, for all slots.
struct DeltaCounts {
  std::uint64_t s, conv, key, u, decay;
  DeltaCounts(const DeltaShape& d, const StateSizes& z) {
    const std::int64_t conv_rows = d.conv_kernel - 1 + z.records,
                       ring = std::int64_t{2} * z.records;
    s = product({z.slots, d.value_heads, d.key_dim, d.value_dim}, "delta state");
    conv = product({z.slots, conv_rows, d.channels()}, "conv state");
    key = product({z.slots, ring, d.key_heads, d.key_dim}, "delta records");
    u = product({z.slots, ring, d.value_heads, d.value_dim}, "delta records");
    decay = product({z.slots, ring, d.value_heads}, "delta records");
  }
};

std::uint64_t kv_elements(const AttentionShape& a, const StateSizes& z) {
  return product({z.pages, a.kv_heads, kPageTokens, a.head_dim}, "KV cache");
}
// Of keys, and as many of values.
struct KvBytes {
  std::uint64_t pages, scales;
  KvBytes(const StateLayout& layout, const AttentionShape& a, const StateSizes& z, DType operand) {
    const bool fp8 = layout.kv == KvFormat::fp8;
    pages = kv_elements(a, z) * (fp8 ? 1 : element(state_type_of(operand)));
    scales = fp8 ? product({z.pages, a.kv_heads, kPageTokens, 4}, "KV cache") : 0;
  }
};

}  // namespace

std::uint64_t kv_bytes(const StateLayout& layout, const StateSizes& sizes, DType operand) {
  std::uint64_t total = 0;
  for (const AttentionShape& a : layout.attention) {
    const KvBytes n(layout, a, sizes, operand);
    total += 2 * (aligned(n.pages) + aligned(n.scales));
  }
  return total;
}

std::uint64_t delta_bytes(const StateLayout& layout, const StateSizes& sizes, DType operand) {
  std::uint64_t total = 0;
  for (const DeltaShape& d : layout.delta) {
    check_shape(d);
    const DeltaCounts n(d, sizes);
    total += aligned(n.s * 4) + aligned(n.conv * element(state_type_of(operand))) +
             aligned(n.key * 4) + aligned(n.u * 4) + aligned(n.decay * 4);
  }
  return total;
}

std::uint64_t count_bytes(const StateSizes& sizes) {
  return aligned(product({sizes.slots, sizes.vocab, 4}, "token counts")) +
         aligned(product({sizes.slots, sizes.records, 4}, "token counts"));
}

void place_state(Loaded& l, Carver& carver) {
  const StateSizes& z = l.sizes;
  const DType kept = state_type_of(l.operand);
  for (const AttentionShape& a : l.layout.attention) {
    const KvBytes n(l.layout, a, z, l.operand);
    KvLayerView v{a, kept, z.pages, carver.take(n.pages), nullptr};
    v.v = carver.take(n.pages);
    if (n.scales > 0) {
      v.k_scales = reinterpret_cast<float*>(carver.take(n.scales));
      v.v_scales = reinterpret_cast<float*>(carver.take(n.scales));
    }
    l.kv.push_back(v);
  }
  for (const DeltaShape& d : l.layout.delta) {
    const DeltaCounts n(d, z);
    DeltaLayerView v{};
    v.shape = d;
    v.operand = kept;
    v.slots = z.slots;
    v.records = z.records;
    v.conv_rows = d.conv_kernel - 1 + z.records;
    v.s = carver.take_array<float>(n.s);
    v.conv = carver.take(n.conv * element(kept));
    v.key = carver.take_array<float>(n.key);
    v.u = carver.take_array<float>(n.u);
    v.decay = carver.take_array<float>(n.decay);
    l.delta.push_back(v);
  }
  l.counts.slots = z.slots;
  l.counts.records = z.records;
  l.counts.vocab = z.vocab;
  const auto slots = static_cast<std::uint64_t>(z.slots);
  l.counts.counts = carver.take_array<std::int32_t>(slots * static_cast<std::uint64_t>(z.vocab));
  l.counts.recent = carver.take_array<std::int32_t>(slots * static_cast<std::uint64_t>(z.records));
}

}  // namespace nibble::cuda
