#include "tests/checkpoint/support.h"

#include <stdlib.h>

#include <cmath>
#include <stdexcept>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/widen.h"

namespace nibble::test {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "nibble-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TensorList& TensorList::add_zeros(const std::string& name, DType dtype,
                                  std::vector<std::int64_t> shape) {
  const std::uint64_t size = tensor_bytes(dtype, shape).value();
  return add(name, dtype, std::move(shape), std::vector<std::uint8_t>(size));
}

const Weight& BoundModel::matrix(std::string_view end) const {
  for (const Weight& w : matrices) {
    if (w.name.ends_with(end)) return w;
  }
  throw std::runtime_error("no matrix ends with " + std::string(end));
}

namespace {

void bind_mlp(BoundModel& out, const Weights& w, const Qwen3_5Config& c) {
  out.matrices.push_back((w / "gate_proj").matrix(c.intermediate, c.hidden));
  out.matrices.push_back((w / "up_proj").matrix(c.intermediate, c.hidden));
  out.matrices.push_back((w / "down_proj").matrix(c.hidden, c.intermediate));
}

void bind_attention(BoundModel& out, const Weights& w, const Qwen3_5Config& c) {
  out.matrices.push_back((w / "q_proj").matrix(2 * c.heads * c.head_dim, c.hidden));
  out.matrices.push_back((w / "k_proj").matrix(c.kv_heads * c.head_dim, c.hidden));
  out.matrices.push_back((w / "v_proj").matrix(c.kv_heads * c.head_dim, c.hidden));
  out.matrices.push_back((w / "o_proj").matrix(c.hidden, c.heads * c.head_dim));
  out.vectors.push_back((w / "q_norm").vector(c.head_dim));
  out.vectors.push_back((w / "k_norm").vector(c.head_dim));
}

void bind_delta_net(BoundModel& out, const Weights& w, const Qwen3_5Config& c) {
  const std::int64_t values = c.linear_value_heads * c.linear_value_dim;
  const std::int64_t qkv = 2 * c.linear_key_heads * c.linear_key_dim + values;
  out.matrices.push_back((w / "in_proj_qkv").matrix(qkv, c.hidden));
  out.matrices.push_back((w / "in_proj_z").matrix(values, c.hidden));
  out.matrices.push_back((w / "in_proj_a").matrix(c.linear_value_heads, c.hidden));
  out.matrices.push_back((w / "in_proj_b").matrix(c.linear_value_heads, c.hidden));
  out.matrices.push_back((w / "out_proj").matrix(c.hidden, values));
  out.vectors.push_back((w / "conv1d").tensor({qkv, 1, c.conv_kernel}));
  out.vectors.push_back((w / "A_log").vector(c.linear_value_heads));
  out.vectors.push_back((w / "dt_bias").vector(c.linear_value_heads));
  out.vectors.push_back((w / "norm").vector(c.linear_value_dim));
}

void bind_norms(BoundModel& out, const Weights& w, const Qwen3_5Config& c) {
  out.vectors.push_back((w / "input_layernorm").vector(c.hidden));
  out.vectors.push_back((w / "post_attention_layernorm").vector(c.hidden));
}

}  // namespace

BoundModel bind_model(const Weights& w, const Qwen3_5Config& c, bool drafts) {
  BoundModel out;
  out.matrices.push_back((w / "model.embed_tokens").matrix(c.vocab, c.hidden));
  if (!c.tied) out.matrices.push_back((w / "lm_head").matrix(c.vocab, c.hidden));
  out.vectors.push_back((w / "model.norm").vector(c.hidden));
  for (int i = 0; i < static_cast<int>(c.layers); ++i) {
    const Weights layer = w / "model.layers" / i;
    bind_norms(out, layer, c);
    if (c.full_attention[static_cast<std::size_t>(i)]) {
      bind_attention(out, layer / "self_attn", c);
    } else {
      bind_delta_net(out, layer / "linear_attn", c);
    }
    bind_mlp(out, layer / "mlp", c);
  }
  if (!drafts) return out;
  const Weights mtp = w / "mtp";
  out.matrices.push_back((mtp / "fc").matrix(c.hidden, 2 * c.hidden));
  for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) {
    out.vectors.push_back((mtp / norm).vector(c.hidden));
  }
  bind_norms(out, mtp / "layers" / 0, c);
  bind_attention(out, mtp / "layers" / 0 / "self_attn", c);
  bind_mlp(out, mtp / "layers" / 0 / "mlp", c);
  return out;
}

double e2m1(int code) {
  constexpr double kLevels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kLevels[code & 7] : kLevels[code & 7];
}

double e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 127) == 127) return std::nan("");
  const double v =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 128 ? -v : v;
}

std::vector<double> dequantise(const Weight& w) {
  std::vector<double> out(static_cast<std::size_t>(w.rows * w.cols));
  const std::int64_t grid = (w.cols + 127) / 128;
  for (std::int64_t n = 0; n < w.rows; ++n) {
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const auto i = static_cast<std::size_t>(n * w.cols + k);
      double code = 0;
      switch (w.format) {
        case WeightFormat::f32:
          code = static_cast<double>(load_le<float>(w.codes, 4 * i));
          break;
        case WeightFormat::f16:
          code = widen_f16(load_le<std::uint16_t>(w.codes, 2 * i));
          break;
        case WeightFormat::bf16:
          code = widen_bf16(load_le<std::uint16_t>(w.codes, 2 * i));
          break;
        case WeightFormat::fp8_e4m3:
          code = e4m3(static_cast<std::uint8_t>(w.codes[i]));
          break;
        case WeightFormat::nvfp4: {
          const int two = static_cast<int>(w.codes[i / 2]);
          code = e2m1(k % 2 == 0 ? two & 15 : two >> 4) *
                 e4m3(static_cast<std::uint8_t>(w.block_scales[i / 16]));
          break;
        }
      }
      std::size_t at = 0;
      if (w.scale_layout == ScaleLayout::row) at = static_cast<std::size_t>(n);
      if (w.scale_layout == ScaleLayout::block128) {
        at = static_cast<std::size_t>(n / 128 * grid + k / 128);
      }
      const double scale = w.scale_layout == ScaleLayout::none ? 1.0 : w.scales.at(at);
      out[i] = code * scale;
    }
  }
  return out;
}

}  // namespace nibble::test
