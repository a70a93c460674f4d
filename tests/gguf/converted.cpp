#include "tests/gguf/converted.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/widen.h"
#include "core/numerics/codecs.h"
#include "tests/checkpoint/support.h"

namespace nibble::test {
namespace {

constexpr int kLayers = 8, kKeyHeads = 4, kValueHeads = 8, kDim = 32;
constexpr int kKeyRows = 2 * kKeyHeads * kDim;

struct Rule {
  const char *theirs, *ours;
};
constexpr Rule kRules[] = {
    {"self_attn.q_proj", "attn_q"},         {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},         {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},    {"self_attn.k_norm", "attn_k_norm"},
    {"input_layernorm", "attn_norm"},       {"post_attention_layernorm", "post_attention_norm"},
    {"mlp.gate_proj", "ffn_gate"},          {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},          {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"}, {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_b", "ssm_beta"},  {"linear_attn.out_proj", "ssm_out"},
    {"linear_attn.conv1d", "ssm_conv1d"},   {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.A_log", "ssm_a"},         {"linear_attn.dt_bias", "ssm_dt.bias"},
};
constexpr Rule kOuter[] = {
    {"model.language_model.embed_tokens", "token_embd"},
    {"model.language_model.norm", "output_norm"},
    {"lm_head", "output"},
    {"mtp.fc", "blk.8.nextn.eh_proj"},
    {"mtp.pre_fc_norm_embedding", "blk.8.nextn.enorm"},
    {"mtp.pre_fc_norm_hidden", "blk.8.nextn.hnorm"},
    {"mtp.norm", "blk.8.nextn.shared_head_norm"},
};

// Scope of a tensor ("lm_head") to its name in the file; empty for what is left out.
std::string stored_scope(const std::string& scope, bool drafts) {
  if (scope.starts_with("mtp.") && !drafts) return "";
  for (const Rule& r : kOuter) {
    if (scope == r.theirs) return r.ours;
  }
  std::string rest, block;
  const std::string layers = "model.language_model.layers.", draft = "mtp.layers.0.";
  if (scope.starts_with(layers)) {
    const std::size_t dot = scope.find('.', layers.size());
    block = scope.substr(layers.size(), dot - layers.size());
    rest = scope.substr(dot + 1);
  } else if (scope.starts_with(draft)) {
    block = "8";
    rest = scope.substr(draft.size());
  }
  for (const Rule& r : kRules) {
    if (rest == r.theirs) return "blk." + block + "." + r.ours;
  }
  return "";
}

// Units of `unit` bytes at and after `first`, from grouped to tiled order of heads.
std::string tiled(const std::string& row, std::size_t first, std::size_t unit) {
  std::string out = row;
  constexpr int kEach = kValueHeads / kKeyHeads;
  for (int r = 0; r < kEach; ++r) {
    for (int k = 0; k < kKeyHeads; ++k) {
      const auto to = static_cast<std::size_t>(r * kKeyHeads + k),
                 from = static_cast<std::size_t>(k * kEach + r);
      std::memcpy(&out[first + to * unit], &row[first + from * unit], unit);
    }
  }
  return out;
}

std::string text_of(Bytes b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

template <class T>
std::string raw(const std::vector<T>& v) {
  return {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T)};
}

// 16 elements a group: byte j holds element j and j + 8.
std::string nvfp4_blocks(const std::string& codes, const std::string& scales) {
  std::string out;
  const auto code = [&](std::size_t i) {
    const auto two = static_cast<unsigned char>(codes[i / 2]);
    return static_cast<unsigned>(i % 2 == 0 ? two & 15 : two >> 4);
  };
  for (std::size_t block = 0; block < scales.size(); block += 4) {
    out += scales.substr(block, 4);
    for (std::size_t g = block; g < block + 4; ++g) {
      for (std::size_t j = 0; j < 8; ++j) {
        out += static_cast<char>(code(16 * g + j) | code(16 * g + j + 8) << 4);
      }
    }
  }
  return out;
}

int scale_exponent(float largest) {  // 2^e >= largest / 127, a normal number of f16
  return largest == 0 ? -14
                      : std::max(-14, static_cast<int>(std::ceil(std::log2(largest / 127.0f))));
}

float block_largest(const std::vector<float>& values, std::size_t at) {
  float m = 0;
  for (std::size_t i = at / 32 * 32; i < at / 32 * 32 + 32; ++i)
    m = std::max(m, std::abs(values[i]));
  return m;
}

std::string encoded(const std::vector<float>& values, std::uint32_t type) {
  if (type == gguf::kF32) return raw(values);
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type != gguf::kQ8_0) {
      const std::uint16_t bits =
          type == gguf::kF16 ? num::float_to_f16(values[i]) : num::float_to_bf16(values[i]);
      out += raw(std::vector<std::uint16_t>{bits});
      continue;
    }
    const int e = scale_exponent(block_largest(values, i));
    if (i % 32 == 0)
      out += raw(std::vector<std::uint16_t>{static_cast<std::uint16_t>((e + 15) << 10)});
    out += static_cast<char>(static_cast<std::int8_t>(std::lround(std::ldexp(values[i], -e))));
  }
  return out;
}

// `row_bytes`: of a row of the matrix.
void order_heads(const std::string& stored, std::string& bytes, std::size_t row_bytes) {
  if (stored.ends_with("attn_qkv") || stored.ends_with("ssm_conv1d")) {
    bytes = tiled(bytes, kKeyRows * row_bytes, kDim * row_bytes);
  } else if (stored.ends_with("attn_gate") && stored.starts_with("blk.")) {
    bytes = tiled(bytes, 0, kDim * row_bytes);
  } else if (stored.ends_with("ssm_alpha") || stored.ends_with("ssm_beta") ||
             stored.ends_with("ssm_a") || stored.ends_with("ssm_dt.bias")) {
    bytes = tiled(bytes, 0, row_bytes);
  } else if (stored.ends_with("ssm_out")) {
    std::string out;
    for (std::size_t at = 0; at < bytes.size(); at += row_bytes) {
      out += tiled(bytes.substr(at, row_bytes), 0, kDim * row_bytes / (kValueHeads * kDim));
    }
    bytes = out;
  }
}

void add_matrix(GgufWriter& w, const Checkpoint& from, const TensorInfo& codes,
                const std::string& scope, const std::string& stored, std::uint32_t type) {
  const TensorInfo& block = *from.find(scope + ".weight_scale");
  const TensorInfo& global = *from.find(scope + ".weight_scale_2");
  const std::int64_t rows = codes.shape[0], cols = 2 * codes.shape[1];
  std::string bytes;
  if (type == gguf::kNvfp4) {
    std::string c = text_of(codes.bytes), s = text_of(block.bytes);
    order_heads(stored, c, static_cast<std::size_t>(cols / 2));
    order_heads(stored, s, static_cast<std::size_t>(cols / 16));
    bytes = nvfp4_blocks(c, s);
  } else {
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    const auto g = static_cast<double>(load_le<float>(global.bytes, 0));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int two = static_cast<int>(codes.bytes[i / 2]);
      values[i] = static_cast<float>(e2m1(i % 2 == 0 ? two & 15 : two >> 4) *
                                     e4m3(static_cast<std::uint8_t>(block.bytes[i / 16])) * g);
    }
    std::string all = raw(values);
    order_heads(stored, all, static_cast<std::size_t>(cols) * 4);
    std::memcpy(values.data(), all.data(), all.size());
    bytes = encoded(values, type);
  }
  w.tensors.push_back({stored + ".weight", type, {cols, rows}, bytes});
  if (type == gguf::kNvfp4)
    w.tensors.push_back({stored + ".scale", gguf::kF32, {1}, text_of(global.bytes)});
  if (const TensorInfo* input = from.find(scope + ".input_scale")) {
    w.tensors.push_back({stored + ".input_scale", gguf::kF32, {1}, text_of(input->bytes)});
  }
}

void add_plain(GgufWriter& w, const TensorInfo& t, const std::string& stored) {
  std::vector<std::int64_t> dims(t.shape.rbegin(), t.shape.rend());
  if (dims.size() == 3) dims = {dims[0], dims[2]};
  const bool bare = stored.ends_with("ssm_a") || stored.ends_with("ssm_dt.bias");
  std::string bytes;
  std::uint32_t type = gguf::kF32;
  if (t.shape.size() == 2) {
    type = gguf::kBF16;
    bytes = text_of(t.bytes);
    order_heads(stored, bytes, static_cast<std::size_t>(2 * dims[0]));
  } else {
    std::vector<float> values = widen(t);
    for (float& v : values) {
      if (stored.ends_with("norm") && !stored.ends_with("ssm_norm")) v = v + 1.0f;
      if (stored.ends_with("ssm_a")) v = static_cast<float>(-std::exp(static_cast<double>(v)));
    }
    bytes = raw(values);
    order_heads(stored, bytes, dims.size() == 2 ? static_cast<std::size_t>(4 * dims[0]) : 4);
  }
  w.tensors.push_back({stored + (bare ? "" : ".weight"), type, dims, bytes});
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void add_text(GgufWriter& w, const std::filesystem::path& folder) {
  const Json file = Json::parse(file_text(folder / "tokenizer.json"), "tokenizer.json");
  std::vector<std::string> tokens(4096), merges;
  std::vector<std::int32_t> types(4096, 1);
  for (const auto& [token, id] : file.find("model")->find("vocab")->as_object()) {
    tokens[static_cast<std::size_t>(id.as_int())] = token;
  }
  for (const Json& t : file.find("added_tokens")->as_array()) {
    const auto id = static_cast<std::size_t>(t.find("id")->as_int());
    tokens[id] = t.find("content")->as_string();
    types[id] = t.find("special")->as_bool() ? 3 : 4;
  }
  for (const Json& m : file.find("model")->find("merges")->as_array()) {
    merges.push_back(m.as_array()[0].as_string() + " " + m.as_array()[1].as_string());
  }
  w.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen35");
  w.texts("tokenizer.ggml.tokens", tokens).i32s("tokenizer.ggml.token_type", types);
  w.texts("tokenizer.ggml.merges", merges);
  w.u32("tokenizer.ggml.eos_token_id", 4093).u32("tokenizer.ggml.padding_token_id", 4091);
  w.flag("tokenizer.ggml.add_bos_token", false).flag("tokenizer.ggml.add_eos_token", false);
  w.text("tokenizer.chat_template", file_text(folder / "chat_template.jinja"));
}

}  // namespace

float stored_value(float v, float largest, std::uint32_t type) {
  if (type == gguf::kF16) return widen_f16(num::float_to_f16(v));
  if (type == gguf::kBF16) return widen_bf16(num::float_to_bf16(v));
  if (type != gguf::kQ8_0) return v;
  const int e = scale_exponent(largest);
  return std::ldexp(static_cast<float>(std::lround(std::ldexp(v, -e))), e);
}

GgufWriter converted(std::uint32_t matrices, bool drafts) {
  const std::filesystem::path folder = kData / "model/hf-nvfp4-modelopt";
  GgufWriter w;
  w.text("general.architecture", "qwen35").text("general.name", "tiny");
  const auto put = [&](const char* key, std::uint32_t v) {
    w.u32(std::string("qwen35.") + key, v);
  };
  put("block_count", drafts ? kLayers + 1 : kLayers);
  if (drafts) put("nextn_predict_layers", 1);
  put("context_length", 4096);
  put("embedding_length", 256);
  put("feed_forward_length", 768);
  put("attention.head_count", 4);
  put("attention.head_count_kv", 2);
  put("attention.key_length", 64);
  put("attention.value_length", 64);
  put("ssm.conv_kernel", 4);
  put("ssm.state_size", kDim);
  put("ssm.group_count", kKeyHeads);
  put("ssm.time_step_rank", kValueHeads);
  put("ssm.inner_size", kValueHeads * kDim);
  put("full_attention_interval", 4);
  put("rope.dimension_count", 16);
  w.i32s("qwen35.rope.dimension_sections", {3, 3, 2, 0});
  w.f32("qwen35.rope.freq_base", 1e7f).f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
  std::vector<bool> recurrent{true, true, true, false, true, true, true, false};
  if (drafts) recurrent.push_back(false);
  w.flags("qwen35.attention.recurrent_layers", recurrent);
  add_text(w, folder);

  const Checkpoint from(folder);
  for (const TensorInfo& t : from.tensors()) {
    std::string scope = t.name;
    const bool leaf = scope.ends_with(".weight");
    if (leaf) scope.resize(scope.size() - 7);
    const std::string stored = stored_scope(scope, drafts);
    if (stored.empty()) continue;
    if (t.dtype == DType::u8) {
      add_matrix(w, from, t, scope, stored, matrices);
    } else {
      add_plain(w, t, stored);
    }
  }
  return w;
}

}  // namespace nibble::test
