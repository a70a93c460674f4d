// `nibble inspect`: what it says of a checkpoint, as text and as JSON.
#include <gtest/gtest.h>

#include <map>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

TEST(Inspect, Text) {
  const ToolRun run = run_tool({"inspect", model_path(), "--memory", "--tensors"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part :
       {"8 layers, hidden 256, vocabulary 4096, 4096 positions", "nvfp4", "bf16", "KV cache",
        "delta and conv state", "mixed(2048)", "layers.0.mlp.gate_proj", "lm_head"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
}

// One line for each NVFP4 matrix and their sum; a checkpoint of FP8 has none to re-encode.
TEST(Inspect, A8SaysWhatReencodingLoses) {
  const ToolRun run = run_tool({"inspect", model_path(), "--activations", "a8"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part : {"re-encoded to FP8", "layers.0.mlp.gate_proj", "6 * 2^0", "all ", "1.417 %", "activations a8"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
  const ToolRun json = run_tool({"inspect", model_path(), "--activations", "a8", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(parse_json(json.out).find("reencoded")->as_array().size(), 50u);
  for (const char* other : {NIBBLE_TEST_DATA "/mixed/hf-fp8-block", NIBBLE_TEST_DATA "/model/hf-nvfp4-ct"}) {
    const bool a16 = std::string(other).find("nvfp4") != std::string::npos;
    const ToolRun none = run_tool({"inspect", other, "--activations", a16 ? "a16" : "a8"});
    EXPECT_EQ(none.out.find("re-encoded"), std::string::npos) << none.out;
  }
}

TEST(Inspect, SaysWhatTheConfigurationHolds) {
  const ToolRun run = run_tool({"inspect", model_path()});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part :
       {"attention     2 layers, 4 heads of 64, 2 KV heads, rotary 16 of 64, theta 1",
        "delta net     6 layers, 4 key heads of 32, 8 value heads of 32, convolution over 4",
        "eps 1e-06, head of its own", "declared      compressed-tensors",
        "nvfp4-pack-quantized, inputs nvfp4_static: Linear", "left alone    ",
        "file          model-00001-of-00002.safetensors: ", "tokenizer     byte-level BPE, 4096 ids",
        "chat template: yes, stop tokens: "}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
}

TEST(Inspect, ExpertsAndWhatATokenNeedsOfThem) {
  const ToolRun run = run_tool({"inspect", NIBBLE_TEST_DATA "/archs/qwen3_next", "--tensors"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part : {"experts       2 layers, 3 of 8 for a token, 32 wide; 197 k parameters, 73.7 k active",
                           "parameters    487 k in all, 298 k active", "layers.1.mlp.experts.7.down_proj",
                           "layers.0.linear_attn.in_proj_qkv"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
  EXPECT_EQ(run_tool({"inspect", model_path()}).out.find("experts"), std::string::npos);
}

TEST(Inspect, JsonHoldsTheConfiguration) {
  const auto inspect = [](const std::string& folder) {
    const ToolRun run = run_tool({"inspect", NIBBLE_TEST_DATA "/" + folder, "--json"});
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(run.out);
  };
  const Json ct = inspect("model/hf-nvfp4-ct");
  EXPECT_EQ(ct.find("attention")->find("kv_heads")->as_int(), 2);
  EXPECT_EQ(ct.find("delta_net")->find("value_heads")->as_int(), 8);
  EXPECT_EQ(ct.find("attention")->find("layers")->as_int() + ct.find("delta_net")->find("layers")->as_int(),
            ct.find("layers")->as_int());
  EXPECT_FALSE(ct.find("tied_head")->as_bool());
  EXPECT_TRUE(ct.find("chat_template")->as_bool());
  EXPECT_FALSE(ct.find("stop_tokens")->as_array().empty());
  EXPECT_FALSE(ct.find("quantisation")->find("ignored")->as_array().empty());
  EXPECT_GE(ct.find("files")->as_array().size(), 2u);
  const std::vector<std::pair<std::string, std::string>> methods = {
      {"model/hf-nvfp4-ct", "compressed-tensors"},
      {"model/hf-nvfp4-modelopt", "modelopt"},
      {"mixed/hf-mixed-ct", "compressed-tensors"},
      {"mixed/hf-mixed-modelopt", "modelopt"},
      {"mixed/hf-fp8-block", "fp8"}};
  for (const auto& [folder, method] : methods) {
    const Json info = inspect(folder);
    EXPECT_EQ(info.find("quantisation")->find("method")->as_string(), method) << folder;
    EXPECT_FALSE(info.find("quantisation")->find("groups")->as_array().empty()) << folder;
  }
}

TEST(Inspect, JsonAddsUp) {
  const ToolRun run =
      run_tool({"inspect", model_path(), "--json", "--tensors", "--kv-tokens", "100"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json out = parse_json(run.out);
  EXPECT_EQ(out.find("layers")->as_int(), 8);
  std::int64_t bytes = 0, count = 0;
  for (const Json& row : out.find("formats")->as_array()) {
    bytes += row.find("bytes")->as_int();
    count += row.find("tensors")->as_int();
  }
  std::int64_t matrix_bytes = 0, matrices = 0;
  for (const Json& row : out.find("tensors")->as_array()) {
    if (row.find("kind")->as_string() != "matrix") continue;
    matrix_bytes += row.find("bytes")->as_int();
    ++matrices;
  }
  EXPECT_EQ(bytes, matrix_bytes);
  EXPECT_EQ(count, matrices);
  std::int64_t sum = 0;
  for (const char* key : {"weight_bytes", "constant_bytes", "kv_bytes", "delta_bytes",
                          "count_bytes", "scratch_bytes"}) {
    sum += out.find(key)->as_int();
  }
  EXPECT_EQ(sum, out.find("total_bytes")->as_int());
  EXPECT_EQ(out.find("loading_bytes")->as_int(), 0);  // a processor packs from the file's pages
  // 128 positions, 2 attention layers, k and v of 2 heads of 64 in float32.
  EXPECT_EQ(out.find("kv_bytes")->as_int(), 128 * 2 * 2 * 2 * 64 * 4);
}

// Each tensor that the model reads is in the list: the bytes of the files, less what is skipped, and what
// scales and the like add to a matrix.
TEST(Inspect, TensorsHoldTheVectorsToo) {
  const ToolRun run = run_tool({"inspect", model_path(), "--json", "--tensors"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::map<std::string, const Json*> vectors;
  const Json out = parse_json(run.out);
  for (const Json& row : out.find("tensors")->as_array()) {
    if (row.find("kind")->as_string() == "vector") vectors[row.find("name")->as_string()] = &row;
  }
  // Two norms of each layer and the last one, four vectors of each of 6 delta nets, two norms of each of 2
  // attentions.
  EXPECT_EQ(vectors.size(), 2u * 8 + 1 + 4 * 6 + 2 * 2);
  const auto shape = [](const Json& row) {
    std::vector<std::int64_t> dims;
    for (const Json& d : row.find("shape")->as_array()) dims.push_back(d.as_int());
    return dims;
  };
  using Shape = std::vector<std::int64_t>;
  std::string prefix = vectors.begin()->first;
  prefix = prefix.substr(0, prefix.find("layers."));
  const std::vector<std::pair<std::string, Shape>> expected = {
      {"norm", {256}},
      {"layers.0.input_layernorm", {256}},
      {"layers.0.linear_attn.A_log", {8}},
      {"layers.0.linear_attn.dt_bias", {8}},
      {"layers.0.linear_attn.norm", {32}},
      {"layers.0.linear_attn.conv1d", {2 * 4 * 32 + 8 * 32, 1, 4}},
      {"layers.3.self_attn.q_norm", {64}}};
  for (const auto& [name, dims] : expected) {
    const auto at = vectors.find(prefix + name);
    ASSERT_NE(at, vectors.end()) << prefix + name;
    EXPECT_EQ(shape(*at->second), dims) << name;
    const std::string format = at->second->find("format")->as_string();
    ASSERT_TRUE(format == "bf16" || format == "f32") << format;
    std::int64_t bytes = format == "bf16" ? 2 : 4;
    for (const std::int64_t d : dims) bytes *= d;
    EXPECT_EQ(at->second->find("bytes")->as_int(), bytes) << name;
    EXPECT_TRUE(at->second->find("activations")->is_null());
  }
  const ToolRun text = run_tool({"inspect", model_path(), "--tensors"});
  EXPECT_NE(text.out.find("layers.0.linear_attn.conv1d"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("512 x 1 x 4"), std::string::npos) << text.out;
}

}  // namespace
}  // namespace nibble::test
