#include "core/checkpoint/synthetic.h"

#include <bit>
#include <cmath>

#include "core/base/quote.h"
#include "core/checkpoint/safetensors.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// splitmix64 as a function of the position: no state, so that loops vectorise.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Stream {
 public:
  Stream(std::uint64_t seed, std::string_view name, std::uint64_t part) {
    std::uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    base_ = mix(mix(seed) ^ h) + mix(part);
  }
  std::uint64_t word(std::uint64_t i) const { return mix(base_ + i * 0x9e3779b97f4a7c15u); }
  // From -1 up to 1, exclusive, in steps of 2^-23.
  float uniform(std::uint64_t i) const {
    return static_cast<float>(static_cast<std::int32_t>(word(i) >> 40) - (1 << 23)) * 0x1p-23f;
  }

 private:
  std::uint64_t base_;
};

// Memory that a Weight owns, in whole words.
struct Block {
  std::shared_ptr<std::uint64_t[]> words;
  std::size_t bytes = 0;

  explicit Block(std::uint64_t size) : bytes(size) {
    try {
      words = std::make_shared_for_overwrite<std::uint64_t[]>(size / 8 + 1);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory, "[synthetic] a tensor of " + std::to_string(size) +
                                                " bytes does not fit in memory");
    }
  }
  Bytes view() const { return {reinterpret_cast<const std::byte*>(words.get()), bytes}; }

  template <class F>
  void fill(const F& word) {
    for (std::size_t i = 0; i <= bytes / 8; ++i) words[i] = word(i);
  }
};

constexpr double kUniformRms = 0.57735026918962576;  // of U(-1, 1)
constexpr double kE2m1Rms = 2.9261749776799063;      // of the 16 codes, all as likely

double e4m3(int code) {  // of a normal number
  return std::ldexp(8 + (code & 7), (code >> 3) - 10);
}

// Root mean square over codes first .. first + count - 1.
double e4m3_rms(int first, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += e4m3(first + i) * e4m3(first + i);
  return std::sqrt(sum / count);
}

constexpr int kFirstBlockScale = 0x30, kBlockScales = 16;  // 0.5 .. 1.875
constexpr int kFirstCode = 0x38, kCodes = 64;              // 1 .. 240

std::uint64_t repeat(int byte) {
  return 0x0101010101010101u * static_cast<std::uint64_t>(byte);
}

void describe_nvfp4(Weight& w) {
  static const double rms = kE2m1Rms * e4m3_rms(kFirstBlockScale, kBlockScales);
  w.scale_layout = ScaleLayout::tensor;
  w.scales = {static_cast<float>(kUniformRms / rms / std::sqrt(static_cast<double>(w.cols)))};
  w.activation = {ActivationFormat::Kind::nvfp4_static, 8.0f / 2688.0f};  // inputs up to 8
}

void make_nvfp4(Weight& w, const Stream& codes, const Stream& scales) {
  Block block(static_cast<std::uint64_t>(w.rows * w.cols) / 2);
  block.fill([&](std::uint64_t i) { return codes.word(i); });
  Block fine(static_cast<std::uint64_t>(w.rows * w.cols) / 16);
  fine.fill([&](std::uint64_t i) {
    return (scales.word(i) & repeat(kBlockScales - 1)) + repeat(kFirstBlockScale);
  });
  w.codes = block.view();
  w.block_scales = fine.view();
  w.owner = std::make_shared<std::pair<Block, Block>>(std::move(block), std::move(fine));
}

void describe_fp8(Weight& w, const Stream& scales) {
  static const double rms = e4m3_rms(kFirstCode, kCodes);
  const double scale = kUniformRms / rms / std::sqrt(static_cast<double>(w.cols));
  w.scale_layout = ScaleLayout::row;
  w.scales.resize(static_cast<std::size_t>(w.rows));
  for (std::size_t n = 0; n < w.scales.size(); ++n) {
    w.scales[n] = static_cast<float>(scale * (1.0 + 0.5 * static_cast<double>(scales.uniform(n))));
  }
  w.activation = {ActivationFormat::Kind::fp8_token, 0.0f};
}

void make_fp8(Weight& w, const Stream& codes) {
  Block block(static_cast<std::uint64_t>(w.rows * w.cols));
  block.fill([&](std::uint64_t i) {  // no carry: 63 + 0x38 stays below the sign bit
    const std::uint64_t r = codes.word(i);
    return (r & repeat(0x80)) | ((r & repeat(kCodes - 1)) + repeat(kFirstCode));
  });
  w.codes = block.view();
  w.owner = std::make_shared<Block>(std::move(block));
}

void make_16(Weight& w, const Stream& values) {
  Block block(static_cast<std::uint64_t>(w.rows * w.cols) * 2);
  const float scale = static_cast<float>(0x1p-15 / std::sqrt(static_cast<double>(w.cols)));
  block.fill([&](std::uint64_t i) {
    const std::uint64_t r = values.word(i);
    std::uint64_t word = 0;
    for (int j = 0; j < 4; ++j) {  // cutting off the low half is as random as rounding it
      const auto v = static_cast<std::int16_t>(r >> (16 * j));
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v) * scale);
      word |= static_cast<std::uint64_t>(bits >> 16) << (16 * j);
    }
    return word;
  });
  w.codes = block.view();
  w.owner = std::make_shared<Block>(std::move(block));
}

void make_32(Weight& w, const Stream& values) {
  Block block(static_cast<std::uint64_t>(w.rows * w.cols) * 4);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(w.cols)));
  block.fill([&](std::uint64_t i) {
    const auto a = std::bit_cast<std::uint32_t>(values.uniform(2 * i) * scale);
    const auto b = std::bit_cast<std::uint32_t>(values.uniform(2 * i + 1) * scale);
    return static_cast<std::uint64_t>(b) << 32 | a;
  });
  w.codes = block.view();
  w.owner = std::make_shared<Block>(std::move(block));
}

bool last_is(std::string_view scope, std::string_view name) {
  return scope == name || (scope.ends_with(name) && scope[scope.size() - name.size() - 1] == '.');
}

struct Range {
  float middle, half;
};

// Where trained models have such values, so that activations stay finite.
Range range_of(std::string_view name, const std::vector<std::int64_t>& shape, bool folded) {
  if (last_is(name, "A_log")) return {1.4f, 1.4f};     // decay rates from 1 to 16
  if (last_is(name, "dt_bias")) return {-3.0f, 2.0f};  // steps of 0.007 to 0.3
  if (shape.size() >= 2) {
    return {0.0f, 1.0f / std::sqrt(static_cast<float>(shape.back()))};
  }
  return {folded ? 0.0f : 1.0f, 0.1f};  // a norm's factor, or what 1 is added to
}

}  // namespace

SyntheticPolicy synthetic_policy(std::string_view mix) {
  if (mix == "nvfp4") return {SyntheticFormat::nvfp4, {}};
  if (mix == "mlp-nvfp4-rest-fp8") return {SyntheticFormat::mlp_nvfp4_rest_fp8, {}};
  if (mix == "bf16") return {SyntheticFormat::bf16, {}};
  if (mix == "f32") return {SyntheticFormat::f32, {}};
  throw Error(ErrorCode::invalid_argument,
              "[synthetic] mix: expected nvfp4, mlp-nvfp4-rest-fp8, bf16 or f32, found " +
                  in_quotes(mix));
}

SyntheticSource::SyntheticSource(std::uint64_t seed, SyntheticPolicy policy)
    : seed_(seed), policy_(std::move(policy)) {}

bool SyntheticSource::has(std::string_view scope) const {
  for (const std::string& name : policy_.absent) {
    if (scope == name || scope.starts_with(name + ".")) return false;
  }
  return !scope.ends_with(".bias");
}

WeightFormat SyntheticSource::format_of(std::string_view scope, std::int64_t cols) const {
  if (policy_.format == SyntheticFormat::f32) return WeightFormat::f32;
  const bool plain = policy_.format == SyntheticFormat::bf16 || last_is(scope, "embed_tokens") ||
                     last_is(scope, "in_proj_a") || last_is(scope, "in_proj_b") ||
                     last_is(scope, "in_proj_ba") || last_is(scope, "mlp.gate") ||
                     last_is(scope, "shared_expert_gate");
  if (plain) return WeightFormat::bf16;
  const bool in_mlp = scope.find(".mlp.") != std::string_view::npos;
  if (policy_.format == SyntheticFormat::mlp_nvfp4_rest_fp8 && !in_mlp) {
    return WeightFormat::fp8_e4m3;
  }
  return cols % 16 == 0 ? WeightFormat::nvfp4 : WeightFormat::bf16;
}

std::optional<Weight> SyntheticSource::make_matrix(std::string_view scope, std::int64_t rows,
                                                   std::int64_t cols) const {
  const auto count =
      checked_mul(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols));
  if (!count || *count > (1ull << 46)) {
    throw Error(ErrorCode::out_of_memory, "[synthetic] " + std::string(scope) + ": " +
                                              shape_text({rows, cols}) + " is too large");
  }
  Weight w;
  w.name = scope;
  w.rows = rows;
  w.cols = cols;
  w.format = format_of(scope, cols);
  const Stream codes(seed_, scope, 0), scales(seed_, scope, 1);
  switch (w.format) {  // what the size of a weight and its declared input depend on
    case WeightFormat::nvfp4:
      describe_nvfp4(w);
      break;
    case WeightFormat::fp8_e4m3:
      describe_fp8(w, scales);
      break;
    default:
      break;
  }
  w.materialize = [codes, scales](Weight& made) {
    switch (made.format) {
      case WeightFormat::nvfp4:
        make_nvfp4(made, codes, scales);
        break;
      case WeightFormat::fp8_e4m3:
        make_fp8(made, codes);
        break;
      case WeightFormat::f32:
        make_32(made, codes);
        break;
      default:
        make_16(made, codes);
    }
  };
  return w;
}

std::optional<std::vector<float>> SyntheticSource::make_tensor(
    std::string_view name, const std::vector<std::int64_t>& shape, bool folded) const {
  const auto bytes = tensor_bytes(DType::f32, shape);
  if (!bytes || *bytes > (1ull << 34)) {
    throw Error(ErrorCode::out_of_memory,
                "[synthetic] " + std::string(name) + ": " + shape_text(shape) + " is too large");
  }
  const Range range = range_of(name, shape, folded);
  const Stream values(seed_, name, 2);
  std::vector<float> out(*bytes / 4);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = range.middle + range.half * values.uniform(i);
  }
  return out;
}

}  // namespace nibble
