// What loading takes on a card, and that other work there changes no bit.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/cuda/model_fixture.h"

namespace nibble {
namespace {

std::uint64_t free_memory() {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

// 27B layers, so that the weights are many times what loading needs beside them.
TEST_F(CudaModel, LoadingStaysWithinItsPlan) {
  constexpr std::uint64_t kSlack = 64u << 20;  // the context, code and what the driver rounds up to
  load("cuda");                                // code is loaded and the context made
  SyntheticOptions shape;
  shape.shape = "qwen3_5-27b";
  shape.layers = 4;
  const std::uint64_t before = free_memory();
  std::uint64_t least = before;
  LoadOptions how = options();
  how.on_progress = [&](const LoadProgress&) {
    least = std::min(least, free_memory());
    return true;
  };
  const Model model = Model::synthetic(shape, Device::parse("cuda"), how);
  const std::uint64_t after = free_memory(), planned = model.info().total_bytes();
  EXPECT_GT(model.info().loading_bytes, 0u);
  EXPECT_LE(before - least, planned + model.info().loading_bytes + kSlack);
  EXPECT_LE(before - after, planned + kSlack);
  EXPECT_LE(after - least, 512u << 20);
  EXPECT_GT(before - after, planned / 2);  // the figures are of this card
}

// A card reads weights from its own memory only.
TEST_F(CudaModel, WeightsCannotStayInTheirFiles) {
  try {
    Model::inspect(checkpoint(), nullptr, Device::parse("cuda:packing=off"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("packing: expected on"), std::string::npos) << e.what();
  }
}

// Another model prefills and copies run while it answers.
TEST_F(CudaModel, OtherWorkOnTheCardChangesNoBit) {
  const auto prompt = some_tokens(300);
  const Model model = load("cuda", 2);
  const auto run = [&] {
    Session a = model.new_session(), b = model.new_session();
    const std::vector<std::int32_t> answer = read_all(a.generate(prompt, answer_of(96)));
    return std::make_pair(answer, b.score(prompt));
  };
  const auto alone = run();

  std::atomic<bool> stop{false};
  std::atomic<int> prefills{0}, copies{0};
  std::thread other([&] {
    const Model busy = load("cuda");
    while (!stop) {
      Session session = busy.new_session();
      session.score(some_tokens(2048, static_cast<std::uint32_t>(++prefills)));
    }
  });
  std::thread copier([&] {
    constexpr std::size_t kBytes = 64u << 20;
    void *from = nullptr, *to = nullptr;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaMalloc(&from, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&to, kBytes), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    while (!stop) {
      EXPECT_EQ(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ++copies;
    }
    cudaStreamDestroy(stream);
    cudaFree(from);
    cudaFree(to);
  });
  while ((prefills == 0 || copies == 0) && !HasFailure()) std::this_thread::yield();
  const int before = prefills;
  int rounds = 0;
  do {  // until the other model has worked beside this one
    EXPECT_EQ(run(), alone);
  } while ((++rounds < 5 || prefills < before + 2) && !HasFailure());
  stop = true;
  other.join();
  copier.join();
  EXPECT_GE(prefills, before + 2);
}

}  // namespace
}  // namespace nibble
