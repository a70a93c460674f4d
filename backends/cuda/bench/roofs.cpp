// roofs.cpp: copies and products, short enough to be repeated between the rows of a bench.
//   copies    as much as is free for it, up to 1 GiB, but more than the L2 holds
//   products  cuBLAS, bf16; cuBLASLt, FP8 by FP8. 8192 x 8192 x 8192 both, on random data: a card's clock depends on them
#include "backends/cuda/bench/roofs.h"

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/bench/cublaslt_peer.h"
#include "backends/cuda/ops/rowwise.h"

namespace nibble::cuda {
namespace {

constexpr int kBatches = 3;
constexpr std::int64_t kSize = 8192;

// What this card, its memory or the machine's libraries do not grant is said; the rest went wrong.
template <class F>
void measured(double& rate, std::string& text, F work) {
  try {
    work();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported && e.code() != ErrorCode::out_of_memory) throw;
    rate = 0;
    text = e.what();
  }
}

void measure_copies(DeviceRoofs& roofs, LaunchTimer& timer, const CardInfo& card, int index) {
  int l2 = 0;
  check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, index), "asking for the L2's size");
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  if (free / 4 < 4 * static_cast<std::uint64_t>(l2)) {  // a copy takes that at most
    throw Error(ErrorCode::out_of_memory, "[cuda] roofs: expected " + std::to_string(16 * static_cast<std::uint64_t>(l2)) +
                                              " bytes of free memory, found " + std::to_string(free));
  }
  roofs.copy_bytes_per_second = copy_rate(timer, card.multiprocessors);
  roofs.copy = "copies on the device, read + written";
}

// Codes of a random matrix, as mode a8 makes them.
Block random_codes(LaunchTimer& timer, const CardInfo& card, std::uint64_t seed) {
  constexpr std::uint64_t kCount = kSize * kSize;
  const Block values = allot(2 * kCount, "values for FP8"), scales = allot(kSize * sizeof(float), "scales for FP8"),
              step = allot(sizeof(StepView), "a step");
  Block codes = allot(kCount, "FP8 codes");
  fill_random(timer.stream(), card.multiprocessors, values, kCount, seed, 1.0f, false);
  const auto cols = static_cast<std::int32_t>(kSize);
  QuantizeArgs pack{{values.data(), DType::bf16, Rows::tokens, kSize, cols},
                    {ActivationFormat::Kind::fp8_token, 0.0f},
                    {codes.data(), DType::u8, Rows::tokens, kSize, cols},
                    {}};
  pack.scales = {scales.data(), DType::f32, Rows::tokens, 1, 1};
  quantize(timer.launch(kSize, step.data(), card.multiprocessors), pack);
  check(cudaGetLastError(), "making FP8 codes");
  check(cudaStreamSynchronize(timer.stream()), "making FP8 codes");
  return codes;
}

void measure_fp8(DeviceRoofs& roofs, LaunchTimer& timer, const CardInfo& card) {
  CublasLtPeer peer;
  if (!peer.there()) throw Error(ErrorCode::unsupported, peer.text());
  const Block w = random_codes(timer, card, 2), x = random_codes(timer, card, 3);
  const Block y = allot(2 * kSize * kSize, "products of FP8"), workspace = allot(CublasLtPeer::kWorkspaceBytes, "cuBLASLt");
  const CublasLtPeer::Product product = peer.fp8_product(kSize, kSize, kSize);
  const LaunchTimes times = timer.measure(1, [&](int) {
    peer.run(product, w.data(), x.data(), y.data(), workspace.data(), timer.stream());
  });
  roofs.fp8_flops_per_second = 2.0 * kSize * kSize * kSize / times.median;
  roofs.fp8 = peer.text();
}

}  // namespace

PeerRate peer_rate(LaunchTimer& timer, int multiprocessors) {
  PeerRate rate;
  CublasPeer peer(timer.stream());
  rate.text = peer.text();
  if (!peer.there()) return rate;
  Block workspace;
  measured(rate.flops_per_second, rate.text,
           [&] { rate.flops_per_second = product_rate(peer, timer, multiprocessors, workspace); });
  check(cudaStreamSynchronize(timer.stream()), "measuring products");  // before the workspace goes
  return rate;
}

DeviceRoofs measure_roofs(const BackendOptions& options, const RoofOptions& how) {
  const CardInfo card = use_card(refuse_mirror(options).index);
  LaunchTimer timer(kBatches, [] {});
  DeviceRoofs roofs;
  measured(roofs.copy_bytes_per_second, roofs.copy, [&] { measure_copies(roofs, timer, card, options.index); });
  const PeerRate peer = peer_rate(timer, card.multiprocessors);
  roofs.matrix_flops_per_second = peer.flops_per_second;
  roofs.matrix = peer.text;
  roofs.fp8 = "not asked for";
  if (how.fp8) measured(roofs.fp8_flops_per_second, roofs.fp8, [&] { measure_fp8(roofs, timer, card); });
  return roofs;
}

}  // namespace nibble::cuda
