// What a card is measured to do: its roofs, and attention by itself.
#include <gtest/gtest.h>

#include "nibble/op_bench.h"
#include "tests/cuda/model_fixture.h"

namespace nibble {
namespace {

class CudaBench : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_card(); !why.empty()) GTEST_SKIP() << why;
  }
};

// What is not measured says why, and a second time differs by what a busy card explains.
TEST_F(CudaBench, Roofs) {
  const DeviceRoofs first = measure_roofs(Device::parse("cuda"), {.fp8 = true});
  EXPECT_GT(first.copy_bytes_per_second, 1e10) << first.copy;
  for (const auto& [rate, text] : {std::pair{first.copy_bytes_per_second, first.copy},
                                   {first.matrix_flops_per_second, first.matrix},
                                   {first.fp8_flops_per_second, first.fp8}}) {
    EXPECT_GE(rate, 0);
    EXPECT_FALSE(text.empty());
    std::printf("%.4g: %s\n", rate, text.c_str());
  }
  const DeviceRoofs again = measure_roofs(Device::parse("cuda"));
  EXPECT_EQ(again.fp8_flops_per_second, 0);
  EXPECT_EQ(again.fp8, "not asked for");
  EXPECT_NEAR(again.copy_bytes_per_second / first.copy_bytes_per_second, 1, 0.5);
  EXPECT_EQ(again.matrix_flops_per_second > 0, first.matrix_flops_per_second > 0);
  if (first.fp8_flops_per_second > 0) EXPECT_GT(first.fp8_flops_per_second, first.matrix_flops_per_second);
}

// Beside a model that holds most of what it asked for.
TEST_F(CudaModel, RoofsBesideAModel) {
  const Model model = load("cuda");
  Session session = model.new_session();
  const auto tokens = [&] {
    std::vector<std::int32_t> all;
    for (const Piece& piece : session.generate(some_tokens(64), answer_of(8))) all.push_back(piece.token);
    session.clear();
    return all;
  };
  const std::vector<std::int32_t> before = tokens();
  EXPECT_GT(measure_roofs(Device::parse("cuda")).copy_bytes_per_second, 0);
  EXPECT_EQ(tokens(), before);
}

TEST_F(CudaBench, AttentionByItself) {
  for (const char* device : {"cuda", "cuda:arch-path=sm70", "cuda:arch-path=sm120"}) {
    AttentionBenchOptions how;
    how.shapes = {{24, 4, 256}, {8, 8, 64}};
    how.rows = {1, 100, 512};
    how.depths = {5, 1000, 5000};
    how.sequences = {1, 3};
    how.repetitions = 2;
    how.peer = false;
    const AttentionBench bench = bench_attention(Device::parse(device), how);
    EXPECT_TRUE(bench.complete);
    EXPECT_FALSE(bench.has_peer);
    ASSERT_EQ(bench.rows.size(), 2u * 2 * 6);
    const std::uint64_t size = bench.profile == "sm70" ? 4 : 2;
    for (const AttentionBenchRow& r : bench.rows) {
      EXPECT_GT(r.times.median, 1e-7);
      EXPECT_LT(r.times.median, 1);
      EXPECT_FALSE(r.kernel.empty());
      const auto keys = static_cast<std::uint64_t>((r.depth + r.rows) * r.sequences);
      EXPECT_EQ(r.kv_bytes, 2 * keys * static_cast<std::uint64_t>(r.shape.kv_heads * r.shape.head_dim) * size);
      if (r.cold) EXPECT_LT(static_cast<double>(r.kv_bytes) / r.times.median, 1.2 * bench.copy_bytes_per_second);
    }
  }
}

TEST_F(CudaBench, AttentionEndsWhereItIsAskedTo) {
  AttentionBenchOptions how;
  how.shapes = {{4, 2, 64}};
  how.rows = {64, 128};
  how.depths = {64};
  how.repetitions = 1;
  how.peer = false;
  how.on_progress = [](std::string_view what, double) { return what.find("of 128") == std::string_view::npos; };
  const AttentionBench bench = bench_attention(Device::parse("cuda"), how);
  EXPECT_FALSE(bench.complete);
  EXPECT_EQ(bench.rows.size(), 1u);
}

}  // namespace
}  // namespace nibble
