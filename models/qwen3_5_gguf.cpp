// qwen3_5_gguf.cpp: what llama.cpp's converter makes of a Qwen3.5 checkpoint, undone.
//
// It adds 1 to zero-centred norms, stores -exp(A_log), squeezes the convolution's middle axis,
// counts the draft head's layer as a block, and keeps value heads tiled: head h uses key head h %
// keys, where the model's uses h / (values / keys).
#include "models/qwen3_5_gguf.h"

#include <algorithm>
#include <limits>

#include "core/checkpoint/tensor_info.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kMostBlocks = 10'000, kMostSize = 1 << 22;

struct Sizes {
  std::int64_t blocks = 0, drafts = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t layers() const { return blocks - drafts; }
};

std::string key(const char* name) {
  return std::string("qwen35.") + name;
}

std::int64_t size_of(const JsonView& m, const char* name, std::int64_t most = kMostSize) {
  return m.integer(key(name), 1, most);
}

[[noreturn]] void unsupported(const JsonView& m, const std::string& name, const std::string& what) {
  throw Error(ErrorCode::unsupported, m.path() + ": " + name + ": " + what);
}

Sizes read_sizes(const JsonView& m) {
  Sizes s;
  s.blocks = size_of(m, "block_count", kMostBlocks);
  s.drafts = m.integer_or(key("nextn_predict_layers"), 0, 0, s.blocks - 1);
  if (s.drafts > 1) {
    unsupported(m, key("nextn_predict_layers"),
                "expected 0 or 1, found " + std::to_string(s.drafts));
  }
  s.key_heads = size_of(m, "ssm.group_count");
  s.value_heads = size_of(m, "ssm.time_step_rank");
  s.key_dim = size_of(m, "ssm.state_size");
  const std::int64_t inner = size_of(m, "ssm.inner_size", std::int64_t{kMostSize} * 16);
  const auto divides = [&](const char* name, std::int64_t whole, std::int64_t part) {
    if (whole % part == 0) return;
    m.fail(key(name),
           "expected a multiple of " + std::to_string(part) + ", found " + std::to_string(whole));
  };
  divides("ssm.inner_size", inner, s.value_heads);
  divides("ssm.time_step_rank", s.value_heads, s.key_heads);
  s.value_dim = inner / s.value_heads;
  return s;
}

Json layer_types(const JsonView& m, const Sizes& s) {
  const std::string name = key("attention.recurrent_layers");
  Json::Array types;
  if (m.has(name)) {
    const auto recurrent = m.array(name);
    if (static_cast<std::int64_t>(recurrent.size()) != s.blocks) {
      m.fail(name, "expected qwen35.block_count " + std::to_string(s.blocks) + " entries, found " +
                       std::to_string(recurrent.size()));
    }
    for (std::int64_t i = 0; i < s.layers(); ++i) {
      const Json& one = recurrent[static_cast<std::size_t>(i)];
      if (!one.is_bool()) m.fail(name, std::string("expected bools, found one ") + one.type_name());
      types.emplace_back(one.as_bool() ? "linear_attention" : "full_attention");
    }
    return types;
  }
  const std::int64_t interval = m.integer_or(key("full_attention_interval"), 4, 1, kMostBlocks);
  for (std::int64_t i = 0; i < s.layers(); ++i) {
    types.emplace_back((i + 1) % interval == 0 ? "full_attention" : "linear_attention");
  }
  return types;
}

Json rope(const JsonView& m, std::int64_t head_dim) {
  if (const std::string type = m.string_or(key("rope.scaling.type"), "none"); type != "none") {
    unsupported(m, key("rope.scaling.type"), "expected none, found " + show_name(type));
  }
  const std::int64_t dims = m.integer(key("rope.dimension_count"), 2, head_dim);
  Json::Object out{
      {"rope_type", "default"},
      {"rope_theta", m.number(key("rope.freq_base"), std::numeric_limits<float>::min(),
                              std::numeric_limits<float>::max())},
      {"partial_rotary_factor", static_cast<double>(dims) / static_cast<double>(head_dim)}};
  const std::string sections = key("rope.dimension_sections");
  if (m.has(sections)) {
    const auto all = m.array(sections);
    if (all.size() < 3 || (all.size() > 3 && !(all[3] == Json(0)))) {
      m.fail(sections, "expected three sections and 0, found another list");
    }
    out.emplace_back("mrope_section", Json::Array(all.begin(), all.begin() + 3));
  }
  return out;
}

Json config_of(const GgufModel& model, const Sizes& s) {
  const JsonView m = model.metadata();
  const GgufTensor* embedding = model.find("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2) {
    throw Error(ErrorCode::bad_file,
                m.path() + ": tensor \"token_embd.weight\": expected two dims, found " +
                    (embedding == nullptr ? "none" : shape_text(embedding->dims)));
  }
  const std::int64_t head_dim = size_of(m, "attention.key_length");
  m.integer_or(key("attention.value_length"), head_dim, head_dim, head_dim);
  Json::Object c{{"model_type", "qwen3_5_text"},
                 {"vocab_size", embedding->dims[1]},
                 {"hidden_size", size_of(m, "embedding_length")},
                 {"intermediate_size", size_of(m, "feed_forward_length")},
                 {"num_hidden_layers", s.layers()},
                 {"num_attention_heads", size_of(m, "attention.head_count")},
                 {"num_key_value_heads", size_of(m, "attention.head_count_kv")},
                 {"head_dim", head_dim},
                 {"linear_num_key_heads", s.key_heads},
                 {"linear_num_value_heads", s.value_heads},
                 {"linear_key_head_dim", s.key_dim},
                 {"linear_value_head_dim", s.value_dim},
                 {"linear_conv_kernel_dim", size_of(m, "ssm.conv_kernel")},
                 {"max_position_embeddings", size_of(m, "context_length", 1ll << 31)},
                 {"rms_norm_eps", m.number(key("attention.layer_norm_rms_epsilon"),
                                           std::numeric_limits<float>::min(), 0.999)},
                 {"rope_parameters", rope(m, head_dim)},
                 {"layer_types", layer_types(m, s)},
                 {"mtp_num_hidden_layers", s.drafts},
                 {"tie_word_embeddings", model.find("output.weight") == nullptr}};
  return c;
}

class Table {
 public:
  // A matrix and the scales that may stand beside it.
  void matrix(const std::string& stored, const std::string& name, const GgufHeads& heads = {}) {
    out.push_back({stored + ".weight", name + ".weight", false, heads});
    out.push_back({stored + ".scale", name + ".weight_scale_2"});
    out.push_back({stored + ".input_scale", name + ".input_scale"});
  }
  void norm(const std::string& stored, const std::string& name) {  // zero-centred
    out.push_back({stored + ".weight", name + ".weight", true});
  }

  void attention(const std::string& b, const std::string& l) {
    matrix(b + "attn_q", l + "self_attn.q_proj");
    matrix(b + "attn_k", l + "self_attn.k_proj");
    matrix(b + "attn_v", l + "self_attn.v_proj");
    matrix(b + "attn_output", l + "self_attn.o_proj");
    norm(b + "attn_q_norm", l + "self_attn.q_norm");
    norm(b + "attn_k_norm", l + "self_attn.k_norm");
  }
  void around(const std::string& b, const std::string& l) {  // norms and MLP
    norm(b + "attn_norm", l + "input_layernorm");
    norm(b + "post_attention_norm", l + "post_attention_layernorm");
    matrix(b + "ffn_gate", l + "mlp.gate_proj");
    matrix(b + "ffn_up", l + "mlp.up_proj");
    matrix(b + "ffn_down", l + "mlp.down_proj");
  }
  void delta_net(const std::string& b, const std::string& layer, const Sizes& s) {
    using Axis = GgufHeads::Axis;
    const std::string l = layer + "linear_attn.";
    const std::int64_t each = s.value_heads / s.key_heads, keys = 2 * s.key_heads * s.key_dim;
    const auto heads = [&](Axis axis, std::int64_t first, std::int64_t unit) {
      return GgufHeads{axis, first, unit, s.key_heads, each};
    };
    const GgufHeads single = heads(Axis::rows, 0, 1), values = heads(Axis::rows, 0, s.value_dim);
    const GgufHeads after_keys = heads(Axis::rows, keys, s.value_dim);
    matrix(b + "attn_qkv", l + "in_proj_qkv", after_keys);
    matrix(b + "attn_gate", l + "in_proj_z", values);
    matrix(b + "ssm_alpha", l + "in_proj_a", single);
    matrix(b + "ssm_beta", l + "in_proj_b", single);
    matrix(b + "ssm_out", l + "out_proj", heads(Axis::columns, 0, s.value_dim));
    out.push_back({b + "ssm_conv1d.weight", l + "conv1d.weight", false, after_keys, true});
    out.push_back({b + "ssm_a", l + "A_log", true, single});
    out.push_back({b + "ssm_dt.bias", l + "dt_bias", false, single});
    out.push_back({b + "ssm_norm.weight", l + "norm.weight"});
  }

  std::vector<GgufBinding> out;
};

}  // namespace

GgufPlan plan_qwen3_5_gguf(const GgufModel& model) {
  const Sizes s = read_sizes(model.metadata());
  GgufPlan plan;
  plan.config = config_of(model, s);
  Table t;
  t.matrix("token_embd", "model.embed_tokens");
  t.matrix("output", "lm_head");
  t.norm("output_norm", "model.norm");
  const auto& types = plan.config.find("layer_types")->as_array();
  for (std::int64_t i = 0; i < s.layers(); ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const std::string l = "model.layers." + std::to_string(i) + ".";
    t.around(b, l);
    if (types[static_cast<std::size_t>(i)].as_string() == "full_attention") {
      t.attention(b, l);
    } else {
      t.delta_net(b, l, s);
    }
  }
  if (s.drafts == 1) {
    const std::string b = "blk." + std::to_string(s.layers()) + ".", l = "mtp.layers.0.";
    t.around(b, l);
    t.attention(b, l);
    t.matrix(b + "nextn.eh_proj", "mtp.fc");
    t.norm(b + "nextn.enorm", "mtp.pre_fc_norm_embedding");
    t.norm(b + "nextn.hnorm", "mtp.pre_fc_norm_hidden");
    t.norm(b + "nextn.shared_head_norm", "mtp.norm");
  }
  plan.tensors = std::move(t.out);
  return plan;
}

}  // namespace nibble
