// A GGUF file: either refused with an Error, or every tensor lies inside the file. What is sound is
// read as a model too: metadata to configuration, tokenizer and bindings.
#include <cstdlib>
#include <memory>

#include "core/checkpoint/gguf_source.h"
#include "core/text/gguf_tokenizer.h"
#include "core/text/tokenizer.h"
#include "models/qwen3_5_config.h"
#include "models/qwen3_5_gguf.h"
#include "nibble/error.h"

namespace {

using namespace nibble;

void check_container(const GgufFile& file, Bytes all) {
  std::size_t total = 0;
  for (const GgufTensor& t : file.tensors()) {
    total += t.bytes.size();
    std::int64_t values = 1;
    for (const std::int64_t d : t.dims) values *= d;
    if (t.bytes.empty() ||
        values / t.type->block * t.type->block_bytes != static_cast<std::int64_t>(t.bytes.size())) {
      std::abort();
    }
    if (t.bytes.data() < all.data() || t.bytes.data() + t.bytes.size() > all.data() + all.size())
      std::abort();
  }
  if (total > all.size()) std::abort();
}

template <class F>
void refused_or_done(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::internal) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes all(reinterpret_cast<const std::byte*>(data), size);
  std::shared_ptr<const GgufModel> model;
  try {
    GgufFile file(all, "fuzz", nullptr);
    check_container(file, all);
    model = std::make_shared<const GgufModel>(std::move(file), "fuzz");
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_file) std::abort();
    return 0;
  }
  refused_or_done([&] { BpeTokenizer::from_json(gguf_tokenizer_json(model->metadata()), "fuzz"); });
  refused_or_done([&] { gguf_stop_tokens(model->metadata()); });
  refused_or_done([&] { gguf_template_tokens(model->metadata()); });
  refused_or_done([&] {
    GgufPlan plan = plan_qwen3_5_gguf(*model);
    read_qwen3_5_config(JsonView(plan.config, "fuzz"));
    const GgufSource source(model, std::move(plan.tensors));
    for (const TensorInfo& t : source.tensors()) {
      if (t.shape.size() != 2) continue;
      Weight w;
      w.rows = t.shape[0];
      w.cols = t.shape[1];
      w.codes_origin = "fuzz";
      if (w.rows * w.cols < 1 << 20 && source.decoded_at_load(t, w)) w.materialize(w);
    }
  });
  return 0;
}
