// llama.cpp: dense models of the Llama 3 family (LlamaForCausalLM): full attention, SwiGLU, plain
// norm weights, rotary frequencies as they are, divided (linear), or divided for long waves only
// (llama3).
#include "models/llama.h"

#include "models/dense.h"

namespace nibble {

DenseConfig read_llama_config(const JsonView& config) { return read_dense_config(config, AbsentHeads::derived); }

std::unique_ptr<Decoder> make_llama(const JsonView& config, const Weights& weights) {
  return make_dense("llama", read_llama_config(config), false, weights);
}

}  // namespace nibble
