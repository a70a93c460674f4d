// model_fixture.h: the shipped checkpoint on a card; without one the tests skip and say why.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/nibble.hpp"
#include "tests/support/golden.h"

namespace nibble {

inline std::filesystem::path checkpoint() {
  return test::data_folder() / "model/hf-nvfp4-ct";
}

inline std::string no_card() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count == 0 ? "no card" : "";
}

class CudaModel : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_card(); !why.empty()) GTEST_SKIP() << why;
    if (!std::filesystem::exists(checkpoint())) GTEST_SKIP() << checkpoint() << " is not there";
  }
  static LoadOptions options(int sequences = 1) {
    LoadOptions how;
    how.max_sequences = sequences;
    how.kv_tokens = 4096;
    return how;
  }
  static Model load(const char* device, int sequences = 1) {
    return Model::load(checkpoint(), Device::parse(device), options(sequences));
  }
};

inline Sampling answer_of(int length) {
  Sampling how;
  how.max_new_tokens = length;
  how.ignore_model_stop_tokens = true;
  return how;
}

inline std::vector<std::int32_t> some_tokens(std::size_t count, std::uint32_t seed = 7) {
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& t : tokens) {
    seed = seed * 1664525u + 1013904223u;
    t = static_cast<std::int32_t>(seed >> 8) % 4000;
  }
  return tokens;
}

inline std::vector<std::int32_t> read_all(TokenStream stream) {
  std::vector<std::int32_t> tokens;
  for (const Piece& p : stream) tokens.push_back(p.token);
  return tokens;
}

}  // namespace nibble
