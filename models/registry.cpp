#include "models/registry.h"

#include "models/llama.h"
#include "models/qwen3.h"
#include "models/qwen3_5.h"
#include "models/qwen3_5_gguf.h"
#include "models/qwen3_5_moe.h"
#include "models/qwen3_next.h"

namespace nibble {
namespace {

constexpr ModelEntry kModels[] = {
    {"qwen3_5", make_qwen3_5},
    {"qwen3_5_text", make_qwen3_5},
    {"qwen3", make_qwen3},
    {"llama", make_llama},
    {"qwen3_5_moe", make_qwen3_5_moe},
    {"qwen3_5_moe_text", make_qwen3_5_moe},
    {"qwen3_next", make_qwen3_next},
};

constexpr GgufArchitecture kGguf[] = {
    {"qwen35", plan_qwen3_5_gguf},
};

// Public shapes, and a 1-2 B one in the 27B's proportions.
constexpr ModelPreset kPresets[] = {
    {"qwen3_5-27b", R"({"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 5120,
      "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
      "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 262144,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
      "linear_num_key_heads": 16, "linear_num_value_heads": 48})"},
    {"qwen3_5-2b", R"({"model_type": "qwen3_5_text", "vocab_size": 151936, "hidden_size": 2048,
      "intermediate_size": 6912, "num_hidden_layers": 24, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 262144,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
      "linear_num_key_heads": 8, "linear_num_value_heads": 16})"},
    {"tiny", R"({"model_type": "qwen3_5_text", "vocab_size": 512, "hidden_size": 128,
      "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096,
      "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 40960,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 1e6})"},
    {"llama3-8b", R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
      "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 5e5,
      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192}})"},
    {"tiny-qwen3", R"({"model_type": "qwen3", "vocab_size": 512, "hidden_size": 128,
      "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 1e6})"},
    {"tiny-llama", R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 128,
      "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 5e5,
      "rope_scaling": {"rope_type": "linear", "factor": 2.0}})"},
    {"qwen3_next-80b", R"({"model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048,
      "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16,
      "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 262144,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_theta": 1e7, "partial_rotary_factor": 0.25,
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
      "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": true,
      "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512})"},
    {"qwen3_5_moe-35b", R"({"model_type": "qwen3_5_moe_text", "vocab_size": 248320, "hidden_size": 2048,
      "num_hidden_layers": 40, "num_attention_heads": 16,
      "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 262144,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
      "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "num_experts": 256, "num_experts_per_tok": 8,
      "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512})"},
    {"tiny-moe", R"({"model_type": "qwen3_5_moe_text", "vocab_size": 512, "hidden_size": 128,
      "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "num_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64})"},
    {"tiny-next", R"({"model_type": "qwen3_next", "vocab_size": 512, "hidden_size": 128,
      "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "full_attention_interval": 4,
      "rope_theta": 1e7, "partial_rotary_factor": 0.25,
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "num_experts": 16, "num_experts_per_tok": 3, "norm_topk_prob": true,
      "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32})"},
};

}  // namespace

std::span<const ModelEntry> model_registry() { return kModels; }
std::span<const ModelPreset> model_presets() { return kPresets; }
std::span<const GgufArchitecture> gguf_architectures() { return kGguf; }

}  // namespace nibble
