#include "backends/cuda/bench/gate_up_bench.h"

#include <algorithm>

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/ops/linear.h"
#include "backends/cuda/ops/rowwise.h"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kColdRows = 16;  // up to here a step reads weights and does little else
constexpr std::uint64_t kMostCopies = 1024;

class Runner : BenchRun<GateUpBench, GateUpBenchOptions> {
 public:
  Runner(const BackendOptions& options, const GateUpBenchOptions& how)
      : BenchRun(options, how, how.shapes.size() * how.formats.size() * how.rows.size(), "gate-up") {
    step_ = allot(sizeof(StepView), "a step");
    if (const std::uint64_t bytes = linear_sums_bytes(path_, card_.multiprocessors); bytes > 0) {
      sums_ = allot(bytes, "partial sums");
      check(cudaMemsetAsync(sums_.data(), 0, sums_.bytes(), timer_.stream()), "clearing partial sums");
    }
  }

  GateUpBench run() {
    return finish([&] {
      for (const LinearShape& shape : how_.shapes) {
        for (const std::string& format : how_.formats) measure(shape, format);
      }
    });
  }

 private:
  void measure(const LinearShape& s, const std::string& format) {
    what_ = format + " " + std::to_string(s.n) + "x" + std::to_string(s.k) + ", weights";
    go_on();
    Weight gate = random_weight(format, s), up = random_weight(format, s);
    const std::uint64_t each = aligned(image_bytes(gate)), both = aligned(gate_up_bytes(gate, up));
    const bool few = *std::min_element(how_.rows.begin(), how_.rows.end()) <= kColdRows;
    const std::uint64_t copies = few ? std::min(4 * l2_bytes_ / both + 2, kMostCopies) : 1;
    const Block apart = allot(copies * 2 * each, what_), one = allot(copies * both, what_);
    const WeightImage of_gate = pack_random(gate, apart.data(), path_, timer_.stream()),
                      of_up = pack_random(up, apart.data() + each, path_, timer_.stream()),
                      fused = pack_random_gate_up(gate, up, one.data(), path_, timer_.stream());
    for (std::uint64_t c = 1; c < copies; ++c) {
      copy(apart, 2 * each, c);
      copy(one, both, c);
    }
    const std::int64_t most = *std::max_element(how_.rows.begin(), how_.rows.end());
    const auto inputs = static_cast<std::uint64_t>(most * s.k), outputs = static_cast<std::uint64_t>(most * s.n) * 2;
    const Block x = allot(2 * inputs, "x"), g = allot(outputs, "gate"), u = allot(outputs, "up"), y = allot(outputs, "y");
    fill_random(timer_.stream(), card_.multiprocessors, x, inputs, 4, 1, false);
    for (const std::int64_t rows : how_.rows) {
      what_ = format + " " + std::to_string(s.n) + "x" + std::to_string(s.k) + ", T " + std::to_string(rows);
      Launch to = timer_.launch(rows, step_.data(), card_.multiprocessors);
      to.sums = sums_.data();
      const auto linear_of = [&](const WeightImage& image, std::uint64_t bytes, int copy, const Block& out) {
        LinearArgs args;
        args.x = view(x, s.k);
        args.y = view(out, s.n);
        args.path = path_;
        args.weight = moved(image, static_cast<std::uint64_t>(copy) * bytes);
        return args;
      };
      const auto linears = [&](int copy) {
        linear(to, linear_of(of_gate, 2 * each, copy, g));
        linear(to, linear_of(of_up, 2 * each, copy, u));
      };
      const auto three = [&](int copy) {
        linears(copy);
        swiglu(to, {view(g, s.n), view(u, s.n), view(y, s.n)});
      };
      const auto as_one = [&](int copy) { linear(to, linear_of(fused, both, copy, y)); };
      GateUpBenchRow row{s, format, rows, linear_kernel(to, linear_of(fused, both, 0, y)), both, false, {}, {}, {}};
      const int in_turn = rows <= kColdRows ? static_cast<int>(copies) : 1;
      row.cold = rows <= kColdRows && (copies - 1) * both > 4 * l2_bytes_;
      row.linears = timer_.measure(in_turn, linears);
      row.three = timer_.measure(in_turn, three);
      row.fused = timer_.measure(in_turn, as_one);
      result_.rows.push_back(std::move(row));
    }
  }

  void copy(const Block& block, std::uint64_t bytes, std::uint64_t to) const {
    check(cudaMemcpyAsync(block.data() + to * bytes, block.data(), bytes, cudaMemcpyDeviceToDevice, timer_.stream()),
          "copying a weight");
  }
  static View view(const Block& block, std::int64_t cols) {
    return {block.data(), DType::bf16, Rows::tokens, cols, static_cast<std::int32_t>(cols), nullptr};
  }

  Block step_, sums_;
};

}  // namespace

GateUpBench bench_gate_up(const BackendOptions& options, const GateUpBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
