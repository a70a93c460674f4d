// config.json: model type, model config and quantisation config; then a few names are matched.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/checkpoint/json_file.h"
#include "core/checkpoint/quant_config.h"
#include "models/model_type.h"
#include "models/llama.h"
#include "models/qwen3.h"
#include "models/qwen3_5_config.h"
#include "nibble/error.h"

namespace {

void quiet(void (*read)(const nibble::JsonView&), const nibble::JsonView& view) {
  try {
    read(view);
  } catch (const nibble::Error& e) {
    if (e.code() != nibble::ErrorCode::bad_file && e.code() != nibble::ErrorCode::unsupported) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nibble::Json json;
  try {
    json = nibble::parse_json_object(text, "config.json");
  } catch (const nibble::Error&) {
    return 0;
  }
  const nibble::JsonView view(json, "config.json");
  quiet([](const nibble::JsonView& v) { nibble::model_type_of(v); }, view);
  quiet(
      [](const nibble::JsonView& v) {
        const nibble::Qwen3_5Config c = nibble::read_qwen3_5_config(v);
        if (static_cast<std::int64_t>(c.full_attention.size()) != c.layers) std::abort();
        if (c.heads % c.kv_heads != 0 || c.rotary_dim > c.head_dim) std::abort();
      },
      view);
  for (const auto read : {nibble::read_qwen3_config, nibble::read_llama_config}) {
    try {
      const nibble::DenseConfig c = read(view);
      if (c.heads % c.kv_heads != 0 || c.rope.rotary_dim != c.head_dim) std::abort();
      if (!(c.rope.scaling.factor >= 1) || !(c.rope.scaling.low < c.rope.scaling.high)) std::abort();
    } catch (const nibble::Error& e) {
      if (e.code() != nibble::ErrorCode::bad_file && e.code() != nibble::ErrorCode::unsupported) {
        std::abort();
      }
    }
  }
  quiet(
      [](const nibble::JsonView& v) {
        const nibble::QuantConfig q = nibble::QuantConfig::read(v);
        for (const char* name :
             {"lm_head", "model.language_model.layers.0.mlp.up_proj", "mtp.fc"}) {
          q.activation(std::vector<std::string>{name});
        }
      },
      view);
  quiet([](const nibble::JsonView& v) { nibble::QuantConfig::read(v, &v); }, view);
  return 0;
}
