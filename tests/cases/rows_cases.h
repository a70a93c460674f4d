// rows_cases.h: shapes and values for the ops that see one row at a time, and those of their cases that have a digest.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tests/cases/linear_cases.h"

namespace nibble::test {

constexpr std::int64_t kNormCols[] = {1, 3, 16, 77, 512, 513, 5120, 6200};
constexpr std::int32_t kNormGroups[] = {1, 3, 16, 77, 128, 512, 513}, kNormHeads[] = {1, 3};
constexpr std::int64_t kElementwiseCols[] = {1, 3, 16, 77, 512, 513, 1028, 5120};
constexpr std::int32_t kGateDims[] = {1, 3, 16, 77, 256}, kGateHeads[] = {1, 3, 6};
constexpr std::int64_t kGatherCols[] = {1, 3, 16, 77, 512, 513, 5120};
constexpr std::int64_t kQuantizeCols[] = {1, 3, 16, 77, 512, 513, 1040, 5120};
constexpr ActivationFormat kQuantizeFormats[] = {
    {Kind::nvfp4_static, 0.0123f},   {Kind::nvfp4_static, 1.0f},
    {Kind::nvfp4_static, 3e37f},     {Kind::fp8_tensor_static, 0.03f},
    {Kind::fp8_tensor_static, 1.0f}, {Kind::fp8_token, 0},
    {Kind::fp8_token_group128, 0}};
constexpr std::int64_t kF16Cols[] = {1, 3, 64, 255, 256, 1027};
constexpr float kNormEps = 1e-6f;

// Values at and around midpoints of both codes, for scales that leave them there.
inline void put_edges(std::vector<float>& x, std::int64_t cols) {
  const float edges[] = {0.25f,         0.75f,
                         1.25f,         1.75f,
                         2.5f,          3.5f,
                         5.0f,          6.0f,
                         -0.25f,        -5.0f,
                         1e30f,         1e-40f,
                         -0.0f,         447.0f,
                         464.0f,        0x1p-10f,
                         0x1.8p-9f,     17.0f,
                         19.0f,         -std::nanf(""),
                         std::nanf(""), -std::numeric_limits<float>::infinity(),
                         0.0f};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / cols, col = static_cast<std::int64_t>(i) % cols;
    if (row % 5 == 1)
      x[i] = edges[(static_cast<std::size_t>(col) + static_cast<std::size_t>(row)) % 19];
    if (row % 5 == 2 && col % 7 == 3) x[i] = edges[i % std::size(edges)];
    if (row % 5 == 3 && col < 128) x[i] = col % 2 ? -0.0f : 0.0f;
    if (row % 5 == 3 && col >= 128) x[i] = std::nanf("");
    if (row % 5 == 4) x[i] *= 1e-38f;
  }
}

// Rows of every sort: ordinary, huge, tiny, subnormal, zeros, NaN and infinities among others or alone.
inline std::vector<float> rows_of_every_sort(std::int64_t rows, std::int64_t cols) {
  Hash random{21};
  std::vector<float> all;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::uint32_t odd = random() % 16;
      float v = random.value(-10, 10);
      switch (r % 9) {
        case 1: v = random.value(5, 60); break;
        case 2: v = random.value(100, 127); break;
        case 3: v = random.value(-126, -20); break;
        case 4: v = num::bit_cast<float>(random() & 0x807FFFFFu); break;
        case 5: v = odd == 0 ? INFINITY : odd == 1 ? std::nanf("") : random.value(10, 17); break;
        case 6: v = odd % 2 == 0 ? 0.0f : -0.0f; break;
        case 7: v = odd % 2 == 0 ? -INFINITY : std::nanf(""); break;
        case 8: v = num::bit_cast<float>(random()); break;
        default: break;
      }
      all.push_back(v);
    }
  }
  if (cols > 0) all[0] = 65535.0f;  // rounds up to the next power of two
  return all;
}

// --- cases with a digest ---

constexpr const char* kRowsDigests = "ops.rows.txt";
// Rows do not feel each other: around a block of 64, and a few.
constexpr std::int64_t kDigestRows[] = {1, 3, 17, 64, 129, 257};

enum class RowsOp { rms_norm, gated_rms_norm, add, swiglu, sigmoid_gate, gather_rows, quantize, f16_rows };
constexpr const char* kRowsOps[] = {"rms_norm",     "gated_rms_norm", "add",      "swiglu",
                                    "sigmoid_gate", "gather_rows",    "quantize", "f16_rows"};

struct RowsCase {
  RowsOp op;
  std::int64_t rows, heads, width;       // columns: heads * width
  bool x16 = false, z16 = false, y16 = false;  // bf16, else float32
  ActivationFormat format = {};          // quantize

  std::int64_t cols() const { return heads * width; }
  std::int64_t z_cols() const { return op == RowsOp::sigmoid_gate ? 2 * cols() : cols(); }
  const char* op_name() const { return kRowsOps[static_cast<int>(op)]; }
  std::string key() const {
    const auto type = [](bool bf16) { return std::string(bf16 ? "bf16" : "f32"); };
    std::string text = std::string(op_name()) + " T=" + std::to_string(rows) + " cols=" + std::to_string(heads) + "x" +
                       std::to_string(width) + " " + type(x16);
    if (op == RowsOp::quantize) {
      char scale[32];
      std::snprintf(scale, sizeof scale, "%g", static_cast<double>(format.scale));
      return text + " " + activation_format_name(format.kind) + " " + scale;
    }
    return text + " " + type(z16) + " " + type(y16);
  }
};

inline std::vector<RowsCase> rows_cases(RowsOp op) {
  std::vector<RowsCase> all;
  for (const std::int64_t t : kDigestRows) {
    switch (op) {
      case RowsOp::rms_norm:
        for (const std::int64_t cols : kNormCols) {
          for (const int types : {0, 1, 2, 3}) {
            all.push_back({op, t, 1, cols, (types & 1) != 0, false, (types & 2) != 0});
          }
        }
        break;
      case RowsOp::gated_rms_norm:
        for (const std::int32_t group : kNormGroups) {
          for (const std::int32_t heads : kNormHeads) {
            all.push_back({op, t, heads, group});
            all.push_back({op, t, heads, group, true, true, true});
            all.push_back({op, t, heads, group, false, true, true});
          }
        }
        break;
      case RowsOp::add:
      case RowsOp::swiglu:
        for (const std::int64_t cols : kElementwiseCols) {
          all.push_back({op, t, 1, cols});
          all.push_back({op, t, 1, cols, true, true, true});
          all.push_back({op, t, 1, cols, true, false, false});
          all.push_back({op, t, 1, cols, false, false, true});
        }
        break;
      case RowsOp::sigmoid_gate:
        for (const std::int32_t dim : kGateDims) {
          for (const std::int32_t heads : kGateHeads) {
            all.push_back({op, t, heads, dim});
            all.push_back({op, t, heads, dim, true, true, true});
            all.push_back({op, t, heads, dim, false, false, true});
          }
        }
        break;
      case RowsOp::gather_rows:
        for (const std::int64_t cols : kGatherCols) {
          all.push_back({op, t, 1, cols});
          all.push_back({op, t, 1, cols, true, true, true});
          all.push_back({op, t, 1, cols, false, false, true});
        }
        break;
      case RowsOp::quantize:
        for (const ActivationFormat& format : kQuantizeFormats) {
          for (const std::int64_t cols : kQuantizeCols) {
            if (format.kind == Kind::nvfp4_static && cols % 16 != 0) continue;
            for (const bool bf16 : {false, true}) all.push_back({op, t, 1, cols, bf16, false, false, format});
          }
        }
        break;
      case RowsOp::f16_rows:
        for (const std::int64_t cols : kF16Cols) all.push_back({op, t, 1, cols});
        break;
    }
  }
  return all;
}
constexpr RowsOp kAllRowsOps[] = {RowsOp::rms_norm,     RowsOp::gated_rms_norm, RowsOp::add,      RowsOp::swiglu,
                                  RowsOp::sigmoid_gate, RowsOp::gather_rows,    RowsOp::quantize, RowsOp::f16_rows};

// What a case's ops read; values that the buffers' types hold, dense.
struct RowsInput {
  std::vector<float> x, z, weight;   // [rows, cols], [rows, z_cols], [width]
  std::vector<std::int32_t> picked;  // gather_rows

  explicit RowsInput(const RowsCase& c) {
    Hash random{static_cast<std::uint64_t>(c.op) << 48 ^ static_cast<std::uint64_t>(c.rows) << 32 ^
                static_cast<std::uint64_t>(c.heads) << 24 ^ static_cast<std::uint64_t>(c.width)};
    x = values(random, c.rows, c.cols(), c.x16);
    if (c.op == RowsOp::quantize) {
      put_edges(x, c.cols());
      for (float& v : x) v = held(v, c.x16);
    }
    if (c.op == RowsOp::f16_rows) x = rows_of_every_sort(c.rows, c.cols());
    z = values(random, c.rows, c.z_cols(), c.z16);
    for (std::int64_t i = 0; i < c.width; ++i) weight.push_back(std::fabs(random.value(-2, 0)));
    for (std::int64_t r = 0; r < c.rows; r += 1 + static_cast<std::int64_t>(random() % 3)) {
      picked.push_back(static_cast<std::int32_t>(r));
    }
  }
  static float held(float v, bool bf16) { return bf16 ? num::bf16_to_float(num::float_to_bf16(v)) : v; }

 private:
  // Magnitudes over many binades, zeros of both signs; every seventh row has NaN and infinities.
  static std::vector<float> values(Hash& random, std::int64_t rows, std::int64_t cols, bool bf16) {
    constexpr float kOdd[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(), 3e38f};
    std::vector<float> all;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const std::uint32_t pick = random() % 64;
      float v = random.value(-8, 6);
      if (i / cols % 7 == 5 && i % cols % 11 == 0) v = kOdd[random() % 4];
      if (pick == 0) v = random() % 2 == 0 ? 0.0f : -0.0f;
      if (pick == 1) v = 1e-40f;
      all.push_back(held(v, bf16));
    }
    return all;
  }
};

}  // namespace nibble::test
