#include "backends/cuda/bench/pack_bench.h"

#include <algorithm>
#include <cmath>

#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/ops/eights.h"
#include "core/checkpoint/activation_kind.h"
#include "core/numerics/codecs.h"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

class Runner : BenchRun<PackBench, PackBenchOptions> {
 public:
  Runner(const BackendOptions& options, const PackBenchOptions& how)
      : BenchRun(options, how, how.shapes.size() * how.formats.size() * how.rows.size(), "packing") {
    step_ = Block(Place::device, sizeof(StepView), "a step", made_);
  }

  PackBench run() {
    return finish([&] {
      for (const PackShape& shape : how_.shapes) {
        for (const std::string& format : how_.formats) {
          for (const std::int64_t rows : how_.rows) {
            what_ = shape.op + " " + format + ", T " + std::to_string(rows);
            measure(shape, format, rows);
          }
        }
      }
    });
  }

 private:
  // Waves of every size; as bf16, or float32 where `wide`.
  Block inputs(std::int64_t count, bool wide) {
    const std::uint64_t size = wide ? 4 : 2;
    std::vector<std::byte> host(static_cast<std::uint64_t>(count) * size);
    constexpr std::int64_t kPeriod = 1 << 16;
    for (std::int64_t i = 0; i < count; ++i) {
      std::byte* const at = host.data() + static_cast<std::uint64_t>(i) * size;
      if (i >= kPeriod) {
        std::copy_n(at - static_cast<std::uint64_t>(kPeriod) * size, size, at);
        continue;
      }
      const float v = 3 * std::sin(0.37f * static_cast<float>(i % 8191)) *
                      std::cos(0.011f * static_cast<float>(i % 4093));
      if (wide) {
        *reinterpret_cast<float*>(at) = v;
      } else {
        *reinterpret_cast<std::uint16_t*>(at) = num::float_to_bf16(v);
      }
    }
    Block block(Place::device, host.size(), "inputs", made_);
    check(cudaMemcpy(block.data(), host.data(), host.size(), cudaMemcpyHostToDevice), "sending inputs");
    return block;
  }

  void measure(const PackShape& s, const std::string& format, std::int64_t rows) {
    const auto cols = static_cast<std::int32_t>(s.cols);
    const std::int64_t count = rows * cols;
    const bool norm = s.op == "rms_norm", gated = s.op == "gated_rms_norm";
    const Kind kind = *activation_format_kind(format);
    const bool fp4 = kind == Kind::nvfp4_static, grouped = kind == Kind::fp8_token_group128;
    const Block a = inputs(count, norm), b = inputs(norm ? 1 : count, false), w = inputs(cols, true);
    const Block y(Place::device, static_cast<std::uint64_t>(count) * 2, "y", made_),
        codes(Place::device, static_cast<std::uint64_t>(count), "codes", made_),
        scales(Place::device, static_cast<std::uint64_t>(rows * (cols / 16 + 4)) * 4, "scales", made_);
    const auto view = [&](const Block& block, DType type, std::int32_t across) {
      return View{block.data(), type, Rows::tokens, across, across, nullptr};
    };
    const View x = view(a, norm ? DType::f32 : DType::bf16, cols), z = view(b, DType::bf16, cols),
               out = view(y, DType::bf16, cols);
    const PackArgs pack{{kind, 0.01f},
                        view(codes, DType::u8, fp4 ? cols / 2 : cols),
                        kind == Kind::fp8_tensor_static ? View{}
                        : fp4                           ? view(scales, DType::u8, cols / 16)
                                                        : view(scales, DType::f32, grouped ? (cols + 127) / 128 : 1)};
    const auto* const weight = reinterpret_cast<const float*>(w.data());
    constexpr float kEps = 1e-6f;
    const Launch to = launch(rows);
    const auto group = static_cast<std::int32_t>(s.group);
    const auto alone = [&](int) {
      if (norm) {
        rms_norm(to, {x, weight, kEps, out});
      } else if (gated) {
        gated_rms_norm(to, {x, z, weight, group, kEps, out});
      } else {
        swiglu(to, {x, z, out});
      }
    };
    const auto two = [&](int copy) {
      alone(copy);
      quantize(to, {out, pack.format, pack.codes, pack.scales});
    };
    View unread = out;
    unread.data = nullptr;
    const auto fused = [&](int) {
      if (norm) {
        rms_norm_pack(to, {x, weight, kEps, unread}, pack);
      } else if (gated) {
        gated_rms_norm_pack(to, {x, z, weight, group, kEps, unread}, pack);
      } else {
        swiglu_pack(to, {x, z, unread}, pack);
      }
    };
    const char* const refusal =
        norm    ? rms_norm_eights(to, {x, weight, kEps, unread}, &pack, Serve::ask)
        : gated ? gated_rms_norm_eights(to, {x, z, weight, group, kEps, unread}, &pack, Serve::ask)
                : swiglu_eights(to, {x, z, unread}, &pack, Serve::ask);
    result_.rows.push_back({s, format, rows, timer_.measure(1, alone), timer_.measure(1, two),
                            timer_.measure(1, fused), refusal == nullptr ? "eights" : refusal});
  }

  Launch launch(std::int64_t rows) const { return timer_.launch(rows, step_.data(), card_.multiprocessors); }

  std::uint64_t made_ = 0;
  Block step_;
};

}  // namespace

PackBench bench_pack(const BackendOptions& options, const PackBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
