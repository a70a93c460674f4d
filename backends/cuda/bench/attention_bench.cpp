// attention_bench.cpp: times Attention on random data, launch for launch what a program would have.
//   data   q near normal, keys and values too, so that scores are of variance 1; pages of a sequence one after the other.
//          Steps of decoding take copies of the pages in turn where they are few, so that each reads memory
#include "backends/cuda/bench/attention_bench.h"

#include <algorithm>
#include <cmath>

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/bench/bench_step.h"
#include "backends/cuda/bench/roofs.h"
#include "backends/cuda/ops/sequence.h"
#include "core/state/page_pool.h"

namespace nibble::cuda {
namespace {

constexpr std::uint64_t kMostCopies = 64;

class Runner : BenchRun<AttentionBench, AttentionBenchOptions> {
 public:
  Runner(const BackendOptions& options, const AttentionBenchOptions& how)
      : BenchRun(options, how, how.shapes.size() * how.sequences.size() * (how.rows.size() + how.depths.size()), nullptr) {}

  AttentionBench run() {
    return finish([&] {
      at("copies on the device");
      result_.copy_bytes_per_second = copy_rate(timer_, card_.multiprocessors);
      result_.peer = "not asked for";
      if (how_.peer) {
        at("a large product");
        const PeerRate peer = peer_rate(timer_, card_.multiprocessors);
        result_.has_peer = peer.flops_per_second > 0;
        result_.peer = peer.text;
        result_.peer_flops_per_second = peer.flops_per_second;
      }
      for (const AttentionBenchShape& shape : how_.shapes) {
        for (const std::int32_t sequences : how_.sequences) {
          for (const std::int64_t rows : how_.rows) measure(shape, sequences, rows, 0);
          for (const std::int64_t depth : how_.depths) measure(shape, sequences, 1, depth);
        }
      }
    });
  }

 private:
  // Of float32 the upper half of each number is random as a bf16 is, the lower one adds less than 1 %.
  Block random(std::uint64_t bytes, std::uint64_t seed, const char* what) {
    Block block = allot(bytes, what);
    fill_random(timer_.stream(), card_.multiprocessors, block, bytes / 2, seed, 1.0f, false);
    return block;
  }

  void measure(const AttentionBenchShape& s, std::int32_t sequences, std::int64_t rows, std::int64_t depth) {
    const bool decode = depth > 0;
    at(std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads, " + std::to_string(sequences) + " of " +
       std::to_string(rows) + (decode ? " behind " + std::to_string(depth) : ""));
    const AttentionShape shape{s.heads, s.kv_heads, s.head_dim};
    const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    const DType kept = state_type_of(operand_of(path_));
    const std::uint64_t size = kept == DType::f32 ? 4 : 2;
    const std::int64_t all = sequences * rows, cols = std::int64_t{s.heads} * s.head_dim;
    BenchStep step;
    step.sequences = sequences;
    step.rows = rows;
    step.section = decode ? Section::decode : Section::prefill;
    step.position = depth;
    step.pages_each = pages_for(depth + rows);
    const std::int64_t pages = sequences * step.pages_each;
    const Block sent = send_step(timer_, step);

    AttentionBenchRow row;
    row.shape = s;
    row.rows = rows;
    row.depth = depth;
    row.sequences = sequences;
    row.kv_bytes = 2 * u(sequences) * u(depth + rows) * u(s.kv_heads) * u(s.head_dim) * size;
    const std::uint64_t bytes = aligned(u(pages) * u(s.kv_heads) * u(kPageTokens) * u(s.head_dim) * size);
    const std::uint64_t copies = decode ? std::min(2 * l2_bytes_ / bytes + 2, kMostCopies) : 1;
    const bool turns = copies > 2;  // else a launch reads more than that by itself
    row.cold = decode && (turns ? 2 * (copies - 1) * bytes : 2 * bytes) > 4 * l2_bytes_;
    const std::uint64_t held = turns ? copies : 1;
    const Block q = random(u(all * cols) * size, 3, "q"), y = allot(u(all * cols) * size, "y");
    const Block k = random(held * bytes, 5, "keys"), v = random(held * bytes, 7, "values");
    const std::int64_t splits = decode ? attention_split_slots(attention_on_units(path_, shape, step.section), pages, sequences) : 0;
    const Block parts = allot(attention_parts_bytes(shape, splits, 1), "parts of splits");
    if (parts.bytes() > 0) check(cudaMemsetAsync(parts.data(), 0, parts.bytes(), timer_.stream()), "clearing parts");
    const auto view = [&](const Block& block) {
      return View{block.data(), kept, Rows::tokens, cols, static_cast<std::int32_t>(cols), nullptr};
    };
    AttentionArgs args;
    args.q = view(q);
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
    args.state = KvLayerView{shape, kept, pages, k.data(), v.data()};
    args.section = step.section;
    args.y = view(y);
    args.units = attention_on_units(path_, shape, step.section);
    args.parts = splits > 0 ? reinterpret_cast<float*>(parts.data()) : nullptr;
    args.split_slots = splits;
    args.records = 1;
    args.path = path_;
    const Launch to = launch_of(timer_, step, sent, card_.multiprocessors);
    row.kernel = attention_kernel(to, args);
    row.times = timer_.measure(static_cast<int>(held), [&](int copy) {
      AttentionArgs of_copy = args;
      of_copy.state.k += u(copy) * bytes;
      of_copy.state.v += u(copy) * bytes;
      attention(to, of_copy);
    });
    result_.rows.push_back(std::move(row));
  }
};

}  // namespace

AttentionBench bench_attention(const BackendOptions& options, const AttentionBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
