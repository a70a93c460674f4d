#include "backends/cuda/bench/gate_up_bench.h"

#include <algorithm>

#include "backends/cuda/arch_path.h"
#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/check.h"
#include "backends/cuda/device_info.h"
#include "backends/cuda/ops/linear.h"
#include "backends/cuda/ops/rowwise.h"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kColdRows = 16;  // up to here a step reads weights and does little else
constexpr std::uint64_t kMostCopies = 1024;

struct Stopped {};  // by on_progress

class Runner {
 public:
  Runner(const BackendOptions& options, const GateUpBenchOptions& how)
      : how_(how),
        card_(use_card(options.index)),
        path_(arch_path_from(options.arch_path, card_.major, card_.minor)),
        timer_(how.repetitions, [this] { go_on(); }) {
    if (operand_of(path_) == DType::f16) {
      throw Error(ErrorCode::unsupported, "[cuda] bench ops: gate-up: expected rows of bf16 (sm90, sm120), found sm70");
    }
    int l2 = 0;
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, options.index), "asking for the L2's size");
    l2_bytes_ = static_cast<std::uint64_t>(l2);
    result_.device = card_.name;
    result_.kernels = architecture_of(card_.major, card_.minor);
    result_.profile = arch_path_name(path_);
    step_ = allot(sizeof(StepView), "a step");
    if (const std::uint64_t bytes = linear_sums_bytes(path_, card_.multiprocessors); bytes > 0) {
      sums_ = allot(bytes, "partial sums");
      check(cudaMemsetAsync(sums_.data(), 0, sums_.bytes(), timer_.stream()), "clearing partial sums");
    }
  }

  GateUpBench run() {
    try {
      for (const LinearShape& shape : how_.shapes) {
        for (const std::string& format : how_.formats) measure(shape, format);
      }
    } catch (const Stopped&) {
      result_.complete = false;
    }
    return std::move(result_);
  }

 private:
  void go_on() const {
    const std::size_t all = how_.shapes.size() * how_.formats.size() * how_.rows.size();
    const double part = static_cast<double>(result_.rows.size()) / static_cast<double>(all);
    if (how_.on_progress && !how_.on_progress(what_, part)) throw Stopped{};
  }

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

  const GateUpBenchOptions& how_;
  CardInfo card_;
  ArchPath path_;
  LaunchTimer timer_;
  GateUpBench result_;
  std::string what_;
  std::uint64_t l2_bytes_ = 0;
  Block step_, sums_;
};

}  // namespace

GateUpBench bench_gate_up(const BackendOptions& options, const GateUpBenchOptions& how) {
  if (!options.mirror.empty()) {
    throw Error(ErrorCode::no_device,
                "[cuda] mirror: only the CPU mirrors a profile, found \"" + options.mirror + "\"");
  }
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
