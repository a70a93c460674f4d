// Which layers of one input are joined, and that their weights say so.
#include <gtest/gtest.h>

#include "core/layers/layers.h"
#include "core/numerics/matrix_order.h"

namespace nibble {
namespace {

Weight weight(const char* name, std::int64_t rows, WeightFormat format = WeightFormat::bf16,
              ActivationFormat activation = {}) {
  Weight w;
  w.name = name;
  w.format = format;
  w.rows = rows;
  w.cols = 64;
  w.activation = activation;
  return w;
}

// joined_rows of the layers' weights as a step describes them.
std::vector<std::int64_t> described(std::initializer_list<const LinearLayer*> layers) {
  Tracer tracer(TraceOptions{});
  Step step(tracer, ProgramClass{ProgramClass::Kind::decode, 1, 1});
  const Weight table = weight("table", 16);
  const Tensor x = step.embed("table", table);
  std::vector<std::int64_t> rows;
  for (const LinearLayer* layer : layers) {
    (*layer)(step, x);
    rows.push_back(tracer.spec().weights.back().joined_rows);
  }
  return rows;
}

TEST(Join, OneFormatIsOneMatrix) {
  LinearLayer q("q", weight("q", 96)), k("k", weight("k", 32)), v("v", weight("v", 32));
  EXPECT_EQ(described({&q, &k, &v}), (std::vector<std::int64_t>{0, 0, 0}));
  join({&q, &k, &v});
  EXPECT_EQ(described({&q, &k, &v}), (std::vector<std::int64_t>{160, 160, 160}));
}

TEST(Join, EachFormatByItself) {
  LinearLayer qkv("qkv", weight("qkv", 96, WeightFormat::nvfp4)), z("z", weight("z", 64, WeightFormat::nvfp4)),
      a("a", weight("a", 4)), b("b", weight("b", 4)), other("other", weight("other", 8, WeightFormat::f32));
  join({&qkv, &z, &a, &b, &other});
  EXPECT_EQ(described({&qkv, &z, &a, &b, &other}), (std::vector<std::int64_t>{160, 160, 8, 8, 0}));
}

TEST(Join, InputsOfOneScaleOnly) {
  using Kind = ActivationFormat::Kind;
  LinearLayer q("q", weight("q", 96, WeightFormat::nvfp4, {Kind::nvfp4_static, 0.5f})),
      k("k", weight("k", 32, WeightFormat::nvfp4, {Kind::nvfp4_static, 0.25f}));
  join({&q, &k});
  EXPECT_EQ(described({&q, &k}), (std::vector<std::int64_t>{0, 0}));
}

TEST(Join, SumsAreCutByTheRowsOfAll) {
  Weight w = weight("w", 48);
  w.cols = 5120;
  EXPECT_EQ(num::linear_segments(w.order_rows(), w.cols, false).count, 5);
  w.joined_rows = 16480;
  EXPECT_EQ(num::linear_segments(w.order_rows(), w.cols, false).count, 1);
}

}  // namespace
}  // namespace nibble
