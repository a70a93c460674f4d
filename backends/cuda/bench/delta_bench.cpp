#include "backends/cuda/bench/delta_bench.h"

#include <cmath>

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/bench/bench_step.h"
#include "backends/cuda/ops/delta_net.h"
#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kMostPlainRows = 4096;
constexpr std::int32_t kRecords = 1, kTaps = 4;

class Runner : BenchRun<DeltaBench, DeltaBenchOptions> {
 public:
  Runner(const BackendOptions& options, const DeltaBenchOptions& how)
      : BenchRun(options, how, how.shapes.size() * how.sequences.size() * how.rows.size(), "delta") {}

  DeltaBench run() {
    return finish([&] {
      result_.copy_bytes_per_second = copy_rate(timer_, card_.multiprocessors);
      for (const DeltaBenchShape& shape : how_.shapes) {
        for (const std::int32_t sequences : how_.sequences) {
          for (const std::int64_t rows : how_.rows) measure(shape, sequences, rows);
        }
      }
    });
  }

 private:
  // Float32 in [first, first + size).
  Block uniform(std::int64_t count, float first, float size) {
    std::vector<float> host(static_cast<std::size_t>(count));
    std::uint32_t state = 1;
    for (float& v : host) {
      state = state * 1664525u + 1013904223u;
      v = first + size * static_cast<float>(state >> 8) * 0x1p-24f;
    }
    Block block = allot(host.size() * sizeof(float), "inputs");
    check(cudaMemcpyAsync(block.data(), host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice, timer_.stream()),
          "sending inputs");
    check(cudaStreamSynchronize(timer_.stream()), "sending inputs");
    return block;
  }
  Block zeros(std::uint64_t bytes, const char* what) {
    Block block = allot(bytes, what);
    check(cudaMemsetAsync(block.data(), 0, bytes, timer_.stream()), what);
    return block;
  }

  template <class T>
  std::vector<T> host(const Block& from) {
    std::vector<T> to(from.bytes() / sizeof(T));
    check(cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToHost, timer_.stream()), "fetching results");
    check(cudaStreamSynchronize(timer_.stream()), "fetching results");
    return to;
  }

  void measure(const DeltaBenchShape& s, std::int32_t sequences, std::int64_t rows) {
    what_ = std::to_string(s.key_heads) + "/" + std::to_string(s.value_heads) + " heads, " + std::to_string(sequences) +
            " of " + std::to_string(rows);
    const DeltaShape shape{s.key_heads, s.value_heads, s.key_dim, s.value_dim, kTaps};
    const std::int64_t all = sequences * rows, heads = s.value_heads;
    const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    const Section section = rows == 1 ? Section::decode : Section::prefill;
    // A step of decoding takes the row before, so that S is read and written.
    const std::int32_t before = section == Section::decode ? 1 : 0;
    const BenchStep step{sequences, rows, section, before, before, 0};
    const Block sent = send_step(timer_, step);
    const DType kept = state_type_of(operand_of(path_));
    const std::uint64_t size = kept == DType::f32 ? 4 : 2;
    // As l2 norms leave keys; queries and values of the same size, which changes no time.
    const float unit = 1.0f / std::sqrt(static_cast<float>(s.key_dim));
    const Block qkv = kept == DType::f32 ? uniform(all * shape.channels(), -1.7f * unit, 3.4f * unit)
                                         : allot(u(all * shape.channels()) * size, "q, k and v");
    const Block y = allot(u(all * shape.value_channels()) * size, "y");
    if (kept != DType::f32) fill_random(timer_.stream(), card_.multiprocessors, qkv, u(all * shape.channels()), 7, unit, false);
    const Block g = uniform(all * heads, -0.2f, 0.19f), beta = uniform(all * heads, 0.1f, 0.8f);
    const std::uint64_t state_bytes = u(sequences) * u(shape.value_channels() * s.key_dim) * 4;
    const Block state = zeros(state_bytes, "the state"), conv = zeros(u(sequences * kTaps * shape.channels()) * size, "rows of conv"),
                keys = zeros(u(2 * sequences * shape.key_channels()) * 4, "records"),
                deltas = zeros(u(2 * sequences * shape.value_channels()) * 4, "records"),
                decays = zeros(u(2 * sequences * heads) * 4, "records");
    DeltaLayerView layer{};
    layer.shape = shape;
    layer.operand = kept;
    layer.slots = sequences;
    layer.records = kRecords;
    layer.conv_rows = kTaps - 1 + kRecords;
    layer.s = reinterpret_cast<float*>(state.data());
    layer.conv = conv.data();
    layer.key = reinterpret_cast<float*>(keys.data());
    layer.u = reinterpret_cast<float*>(deltas.data());
    layer.decay = reinterpret_cast<float*>(decays.data());
    const Launch to = launch_of(timer_, step, sent, card_.multiprocessors);
    const bool units = section == Section::prefill && delta_on_units(path_, shape);
    const Block records = units ? allot(delta_records_bytes(path_, shape, all, sequences), "records of chunks") : Block();
    const auto view = [&](const Block& block, DType type, std::int64_t cols) {
      return View{block.data(), type, Rows::tokens, cols, static_cast<std::int32_t>(cols), nullptr};
    };
    DeltaRuleArgs args{view(qkv, kept, shape.channels()), view(g, DType::f32, heads), view(beta, DType::f32, heads),
                       layer, section, view(y, kept, shape.value_channels()), records.data(), path_};
    DeltaBenchRow row;
    row.shape = s;
    row.rows = rows;
    row.sequences = sequences;
    row.kernel = delta_rule_kernel(args);
    row.bytes = qkv.bytes() + y.bytes() + g.bytes() + beta.bytes() + 2 * state_bytes;
    if (how_.on_result && section == Section::prefill && kept == DType::bf16 && all <= kMostSavedDeltaRows) {
      delta_rule(to, args);
      const std::vector<std::uint16_t> from = host<std::uint16_t>(qkv), made = host<std::uint16_t>(y);
      how_.on_result(s, sequences, rows, from, host<float>(g), host<float>(beta), made);
    }
    row.times = timer_.measure(1, [&](int) { delta_rule(to, args); });
    row.state_bytes = 2 * state_bytes;
    if (kept == DType::bf16) {
      // Inputs are the rule's own: which numbers they are changes no time.
      const Block mixed = allot(qkv.bytes(), "rows of the convolution"), taps = uniform(shape.channels() * kTaps, -0.5f, 1.0f),
                  heads_row = uniform(heads, -0.2f, 0.1f), weight = uniform(s.value_dim, 0.5f, 1.0f),
                  out = allot(y.bytes(), "the net's output"), z = allot(y.bytes(), "its gate"), decay = allot(g.bytes(), "gates"),
                  open = allot(g.bytes(), "gates");
      fill_random(timer_.stream(), card_.multiprocessors, z, u(all * shape.value_channels()), 11, 1.0f, false);
      const auto floats = [](const Block& b) { return reinterpret_cast<const float*>(b.data()); };
      DeltaNetArgs net{{args.qkv, floats(taps), layer, section, view(mixed, kept, shape.channels())},
                       {args.g, args.beta, floats(heads_row), floats(heads_row), view(decay, DType::f32, heads), view(open, DType::f32, heads)},
                       args,
                       true,
                       {args.y, view(z, kept, shape.value_channels()), floats(weight), s.value_dim, 1e-6f,
                        view(out, kept, shape.value_channels())},
                       section == Section::decode,
                       false,
                       section == Section::prefill};
      net.rule.qkv = net.conv.y;
      net.rule.g = net.gates.g;
      net.rule.beta = net.gates.beta;
      row.net = timer_.measure(1, [&](int) { delta_net(to, net); });
      row.net_kernel = delta_net_kernel(net);
      row.has_net = true;
    }
    row.has_plain = units && all <= kMostPlainRows;
    args.records = nullptr;
    if (row.has_plain) row.plain = timer_.measure(1, [&](int) { delta_rule(to, args); });
    result_.rows.push_back(std::move(row));
  }

};

}  // namespace

DeltaBench bench_delta(const BackendOptions& options, const DeltaBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
