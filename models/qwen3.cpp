// qwen3.cpp: Qwen3 dense text models (Qwen3ForCausalLM): full attention with a norm on each head's
// query and key, SwiGLU, plain norm weights, heads that may be wider together than the hidden size.
#include "models/qwen3.h"

#include "models/dense.h"

namespace nibble {

DenseConfig read_qwen3_config(const JsonView& config) { return read_dense_config(config, AbsentHeads::refused); }

std::unique_ptr<Decoder> make_qwen3(const JsonView& config, const Weights& weights) {
  return make_dense("qwen3", read_qwen3_config(config), true, weights);
}

}  // namespace nibble
