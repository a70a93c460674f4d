// support.h: what the tests of checkpoints share.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint/tensor_info.h"
#include "core/checkpoint/weights.h"
#include "models/qwen3_5_config.h"
#include "nibble/error.h"

namespace nibble::test {

inline const std::filesystem::path kData = NIBBLE_TEST_DATA;

// what() of the Error that `f` throws, "" if it throws none.
inline std::string complaint(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    return e.code() == code ? e.what() : std::string("another code: ") + e.what();
  }
  return "";
}

// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Tensors in memory, for write_safetensors.
class TensorList {
 public:
  template <class T>
  TensorList& add(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                  std::vector<T> values) {
    auto held = std::make_shared<std::vector<T>>(std::move(values));
    kept_.push_back(held);
    list_.push_back({name, dtype, std::move(shape), std::as_bytes(std::span(*held))});
    return *this;
  }
  TensorList& add_zeros(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  const std::vector<TensorInfo>& list() const { return list_; }

 private:
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<TensorInfo> list_;
};

// Everything that a Qwen3.5 model binds.
struct BoundModel {
  std::vector<Weight> matrices;
  std::vector<std::vector<float>> vectors;

  const Weight& matrix(std::string_view logical_end) const;  // by the end of its name
};
BoundModel bind_model(const Weights& w, const Qwen3_5Config& c, bool drafts);

double e2m1(int code);
double e4m3(std::uint8_t code);
// Row-major [N, K], every product in double.
std::vector<double> dequantise(const Weight& w);

}  // namespace nibble::test
