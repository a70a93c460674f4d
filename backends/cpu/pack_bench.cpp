#include "backends/cpu/pack_bench.h"

#include <chrono>
#include <cmath>

#include "backends/cpu/bf16_unit.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/ops/pack.h"
#include "backends/launch_times.h"
#include "core/checkpoint/activation_kind.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

constexpr double kBatchSeconds = 2e-3;

double seconds_of(const std::function<void()>& work, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// Waves of several lengths: of every size, and the same in each run.
std::vector<float> values(std::int64_t count, float seed) {
  std::vector<float> x(size(count));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 3 * std::sin(seed + 0.37f * static_cast<float>(i % 8191)) * std::cos(0.011f * static_cast<float>(i % 4093));
  }
  return x;
}

// Nothing here reads weights: whoever asks for them in place expects something else to be measured.
const PackBenchOptions& with_packing(const BackendOptions& options, const PackBenchOptions& how) {
  if (!options.packing) {
    throw Error(ErrorCode::invalid_argument, "[cpu] packing: expected on where no weight is read, found \"off\"");
  }
  return how;
}

struct Stopped {};  // by on_progress

class Runner {
 public:
  Runner(const BackendOptions& options, const PackBenchOptions& how)
      : how_(with_packing(options, how)),
        device_(CpuBackend(options).device()),
        profile_(profile_from_names(options.profile, options.mirror)),
        isa_(kernels_from_name(options.kernels, profile_ == Profile::bf16).isa),
        parallel_(options.threads) {}

  PackBench run() {
    PackBench result;
    result.device = device_.name + ", threads " + std::to_string(device_.threads);
    result.kernels = device_.kernels;
    result.profile = device_.profile;
    const std::size_t all = how_.shapes.size() * how_.formats.size() * how_.rows.size();
    for (const PackShape& shape : how_.shapes) {
      for (const std::int64_t rows : how_.rows) expect_room(shape, rows);
    }
    try {
      for (const PackShape& shape : how_.shapes) {
        for (const std::string& format : how_.formats) {
          for (const std::int64_t rows : how_.rows) {
            what_ = shape.op + " " + format;
            part_ = static_cast<double>(result.rows.size()) / static_cast<double>(all);
            go_on();
            result.rows.push_back(measure(shape, format, rows));
          }
        }
      }
    } catch (const Stopped&) {
      result.complete = false;
    }
    return result;
  }

 private:
  // Between batches.
  void go_on() const {
    if (how_.on_progress && !how_.on_progress(what_, part_)) throw Stopped{};
  }
  // Two inputs, y, codes and scales.
  void expect_room(const PackShape& s, std::int64_t rows) const {
    const std::uint64_t needed = size(rows) * size(s.cols) * 13 + size(rows) * size(s.cols / 16 + 2) * 4;
    if (device_.free_memory == 0 || needed <= device_.free_memory) return;
    throw Error(ErrorCode::out_of_memory, "[cpu] bench ops: " + s.op + " of " + std::to_string(rows) + " rows needs " +
                                              std::to_string(needed) + " bytes, " + std::to_string(device_.free_memory) +
                                              " are free");
  }

  PackBenchRow measure(const PackShape& s, const std::string& format, std::int64_t rows) {
    const FloatEnv env;
    const std::int64_t cols = s.cols;
    const ActivationFormat to{*activation_format_kind(format), 0.01f};
    std::vector<float> a = values(rows * cols, 0.1f), b = values(rows * cols, 0.7f), w = values(cols, 0.3f);
    std::vector<float> y(size(rows * cols)), scales(size(rows * (cols / 16 + 1)));
    std::vector<std::uint8_t> codes(size(rows * cols));
    std::vector<std::int32_t> exponents(size(rows));
    const std::unique_ptr<float[]> lines(
        new float[size(pack_workspace_bytes(cols, parallel_.threads())) / sizeof(float)]);
    PackArgs args;
    args.to = {rows, cols, to, y.data(), cols, codes.data(), cols, scales.data(), cols / 16 + 1};
    args.operand = operand_type(profile_);
    args.workspace = reinterpret_cast<std::byte*>(lines.get());
    const In x{a.data(), cols}, z{b.data(), cols};
    const Out out{y.data(), cols};
    constexpr float kEps = 1e-6f;
    const bool norm = s.op == "rms_norm", gated = s.op == "gated_rms_norm";
    const auto alone = [&] {
      if (norm) {
        rms_norm(isa_, parallel_, rows, cols, x, w.data(), kEps, out);
      } else if (gated) {
        gated_rms_norm(isa_, parallel_, rows, cols / s.group, s.group, x, z, w.data(), kEps, out);
      } else {
        swiglu(isa_, parallel_, rows, cols, x, z, out);
      }
      if (args.operand == DType::bf16) round_bf16(isa_, parallel_, rows, cols, out);
      if (args.operand == DType::f16) round_f16(isa_, parallel_, rows, cols, out, exponents.data());
    };
    const auto two = [&] {
      alone();
      quantize(isa_, parallel_, args.to);
    };
    const auto fused = [&] {
      if (norm) {
        rms_norm_pack(isa_, parallel_, x, w.data(), kEps, args);
      } else if (gated) {
        gated_rms_norm_pack(isa_, parallel_, s.group, x, z, w.data(), kEps, args);
      } else {
        swiglu_pack(isa_, parallel_, x, z, args);
      }
    };
    // Batches of the three take turns, so that a busy machine slows all of them.
    const std::function<void()> works[] = {alone, two, fused};
    std::vector<double> samples[3];
    int counts[3];
    for (int i = 0; i < 3; ++i) {
      seconds_of(works[i], 1);
      const double each = std::max(seconds_of(works[i], 1), 1e-9);
      counts[i] = std::max(1, static_cast<int>(std::ceil(kBatchSeconds / each)));
    }
    for (int r = 0; r < how_.repetitions; ++r) {
      for (int i = 0; i < 3; ++i) {
        go_on();
        samples[i].push_back(seconds_of(works[i], counts[i]) / counts[i]);
      }
    }
    return {s, format, rows, times_of(samples[0]), times_of(samples[1]), times_of(samples[2]), device_.kernels};
  }

  const PackBenchOptions& how_;
  DeviceInfo device_;
  Profile profile_;
  Isa isa_;
  Parallel parallel_;
  std::string what_;
  double part_ = 0;
};

}  // namespace

PackBench bench_pack(const BackendOptions& options, const PackBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cpu
