// linear_bench: how near Linear comes to the machine, beside the multiply-add peak and the read
// bandwidth of the same run.   linear_bench [threads] [kernels] [N] [K] [mirrors | bf16]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/ops/any_linear.h"
#include "backends/cpu/ops/linear_fused.h"
#include "core/checkpoint/reencode.h"
#include "core/numerics/codecs.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <time.h>

namespace {

using namespace nibble;
using Clock = std::chrono::steady_clock;

// One thread is timed by its own processor time: neighbours on the machine then matter less.
bool own_time = false;
double now() {
  timespec t;
  clock_gettime(own_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double best_seconds(const std::function<void()>& f, double budget) {
  double best = 1e30;
  const auto start = Clock::now();
  do {
    const double t0 = now();
    f();
    best = std::min(best, now() - t0);
  } while (std::chrono::duration<double>(Clock::now() - start).count() < budget);
  return best;
}

struct Aligned {
  explicit Aligned(std::uint64_t n)
      : p(static_cast<std::byte*>(::operator new (n, std::align_val_t{64}))) {}
  ~Aligned() { ::operator delete (p, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::byte* p;
};

// Independent chains in registers: what the fma units give when nothing else is in the way.
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void spin(long n, float* out) {
  __m256 s[12];
  for (__m256& v : s) v = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (long i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) s[j] = _mm256_fmadd_ps(s[j], x, y);
  }
  for (const __m256& v : s) *out += _mm256_cvtss_f32(v);
}
constexpr double kSpinFlop = 12 * 8 * 2;
#else
void spin(long n, float* out) {
  for (long i = 0; i < n; ++i) *out = *out * 0.5f + 0.25f;
}
constexpr double kSpinFlop = 2;
#endif

// Each mirrored profile; `nvfp4`: also with NVFP4 activations, and re-encoded to FP8 as in mode a8.
void mirrors(cpu::Isa isa, cpu::Parallel& parallel, const Weight& weight, const std::vector<float>& x,
             std::vector<float>& y, bool nvfp4) {
  const Aligned workspace(static_cast<std::uint64_t>(cpu::linear_fused_workspace_bytes(64, weight.cols)));
  const std::vector<std::int32_t> exponents(64, 0);
  const std::vector<std::uint8_t> codes(static_cast<std::size_t>(64 * weight.cols), 0x5A),
      scales(static_cast<std::size_t>(64 * weight.cols / 16), 0x3B);
  const std::vector<float> row_scales(64, 0.5f);
  const auto measure = [&](const char* what, cpu::Profile profile, const Weight& w, bool fp4) {
    const bool fp8 = &w != &weight;
    const cpu::WeightOperand operand = cpu::weight_operand(profile);
    const Aligned arena(cpu::packed_bytes(w, operand));
    const auto packed = cpu::pack(w, arena.p, parallel, cpu::nibble_order(isa), operand);
    for (const std::int64_t rows : {1, 2, 8, 64}) {
      cpu::LinearArgs a;
      a.weight = &packed;
      a.rows = rows;
      a.x = x.data();
      a.x_stride = fp4 ? w.cols / 2 : w.cols;
      a.x_exponents = exponents.data();
      if (fp4) {
        a.format = {ActivationFormat::Kind::nvfp4_static, 1.0f};
        a.codes = codes.data();
        a.scales = scales.data();
        a.scale_stride = w.cols / 16;
      }
      if (fp8) {
        a.format = {ActivationFormat::Kind::fp8_token, 0};
        a.codes = codes.data();
        a.scales = row_scales.data();
        a.scale_stride = 1;
        a.fp8_unit = true;
      }
      a.y = y.data();
      a.y_stride = w.rows;
      a.workspace = workspace.p;
      const double s = best_seconds([&] { cpu::linear_fused(profile, isa, parallel, a); }, 0.3);
      std::printf("  mirror of %s, T %4lld  %9.3f ms  %6.3f ns for each multiply-add and thread\n", what,
                  static_cast<long long>(rows), s * 1e3,
                  s * 1e9 * parallel.threads() / static_cast<double>(rows * w.rows * w.cols));
    }
  };
  measure("sm90", cpu::Profile::sm90, weight, false);
  measure("sm70", cpu::Profile::sm70, weight, false);
  if (!nvfp4) return;
  measure("sm120 x nvfp4", cpu::Profile::sm120, weight, true);
  Weight fp8 = reencoded_to_fp8(weight);
  fp8.materialize(fp8);
  measure("sm90 a8", cpu::Profile::sm90, fp8, false);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string mode = argc > 5 ? argv[5] : "";
  const cpu::Profile profile = mode == "bf16" ? cpu::Profile::bf16 : cpu::Profile::f32;
  const cpu::Kernels kernels = cpu::kernels_from_name(argc > 2 ? argv[2] : "", mode == "bf16");
  const cpu::Isa isa = kernels.isa;
  const std::int64_t n = argc > 3 ? std::atoll(argv[3]) : 8192,
                     k = argc > 4 ? std::atoll(argv[4]) : 5120;
  const bool only_mirrors = mode == "mirrors";
  cpu::Parallel parallel(threads);
  own_time = parallel.threads() == 1;
  std::mt19937 random(1);

  const double peak = [&] {
    std::vector<float> out(64);
    constexpr long kTurns = 4'000'000;
    const double s = best_seconds(
        [&] {
          parallel(parallel.threads(), 1, [&](std::int64_t b, std::int64_t e) {
            for (; b < e; ++b) spin(kTurns, &out[static_cast<std::size_t>(b % 64)]);
          });
        },
        0.5);
    return kTurns * kSpinFlop * parallel.threads() / s * 1e-9;
  }();
  const double bandwidth = [&] {
    constexpr std::int64_t kWords = 1 << 26;
    std::vector<std::uint64_t> data(kWords, 1);
    std::uint64_t sum = 0;
    const double s = best_seconds(
        [&] {
          parallel(256, 1, [&](std::int64_t b, std::int64_t e) {
            std::uint64_t local[8] = {};
            for (std::int64_t i = b * kWords / 256; i < e * kWords / 256; i += 8) {
              for (int j = 0; j < 8; ++j) local[j] += data[static_cast<std::size_t>(i + j)];
            }
            for (const std::uint64_t v : local) __atomic_fetch_add(&sum, v, __ATOMIC_RELAXED);
          });
        },
        1.0);
    return kWords * 8.0 / s * 1e-9 + (sum == 0 ? 1 : 0);
  }();
  std::printf("%s, %d threads: fma %.1f GFLOP/s (8 lanes), read %.1f GB/s; N %lld, K %lld\n",
              cpu::kernels_name(kernels).c_str(), parallel.threads(), peak, bandwidth, static_cast<long long>(n),
              static_cast<long long>(k));

  std::vector<float> x(static_cast<std::size_t>(512 * k)), y(static_cast<std::size_t>(512 * n));
  const Aligned workspace(static_cast<std::uint64_t>(
      cpu::any_linear_workspace_bytes(profile, kernels, parallel.threads(), 512, k, {})));
  std::uniform_real_distribution<float> unit(-1, 1);
  for (float& v : x) v = unit(random);
  std::vector<float> operands(x.begin(), x.begin() + 64 * k);
  for (float& v : operands) v = num::bf16_to_float(num::float_to_bf16(v));
  for (const WeightFormat format :
       {WeightFormat::nvfp4, WeightFormat::fp8_e4m3, WeightFormat::bf16}) {
    Weight w;
    w.name = "bench";
    w.format = format;
    w.rows = n;
    w.cols = k;
    w.scale_layout = ScaleLayout::tensor;
    w.scales = {0.01f};
    std::vector<std::byte> codes(static_cast<std::size_t>(format == WeightFormat::nvfp4  ? n * k / 2
                                                          : format == WeightFormat::bf16 ? n * k * 2
                                                                                         : n * k));
    for (std::byte& b : codes)
      b = static_cast<std::byte>(random() & (format == WeightFormat::bf16 ? 0x3F : 0xBF));
    if (format == WeightFormat::bf16) {  // values from 0.5 to 2
      for (std::size_t i = 1; i < codes.size(); i += 2) codes[i] = std::byte{0x3F};
    }
    const std::vector<std::byte> scales(static_cast<std::size_t>(n * k / 16), std::byte{0x38});
    w.codes = codes;
    if (format == WeightFormat::nvfp4) w.block_scales = scales;
    const Aligned arena(cpu::packed_bytes(w));
    const auto t0 = Clock::now();
    const cpu::PackedWeight packed = cpu::pack(w, arena.p, parallel, cpu::nibble_order(isa));
    const double pack_s = std::chrono::duration<double>(Clock::now() - t0).count();
    std::printf("%s, %.1f MB, packed in %.0f ms\n", weight_format_name(format),
                static_cast<double>(packed.bytes) * 1e-6, pack_s * 1e3);
    for (const std::int64_t rows : only_mirrors ? std::vector<std::int64_t>()
                                                : std::vector<std::int64_t>{1,  2,  3,  4,  5,   6,  8,
                                                                            12, 16, 32, 64, 128, 512}) {
      cpu::LinearArgs a;
      a.weight = &packed;
      a.rows = rows;
      a.x = x.data();
      a.x_stride = k;
      a.y = y.data();
      a.y_stride = n;
      a.workspace = workspace.p;
      const double s = best_seconds([&] { cpu::any_linear(profile, kernels, parallel, a); }, 0.3);
      const double flop = 2.0 * static_cast<double>(rows * n * k) / s * 1e-9;
      const double bytes = static_cast<double>(packed.bytes) / s * 1e-9;
      std::printf(
          "  T %4lld  %9.3f ms  %7.1f GFLOP/s (%5.1f %% of peak)  %6.1f GB/s (%5.1f %% of read)\n",
          static_cast<long long>(rows), s * 1e3, flop, 100 * flop / peak, bytes,
          100 * bytes / bandwidth);
    }
    if (profile == cpu::Profile::f32) mirrors(isa, parallel, w, operands, y, format == WeightFormat::nvfp4);
  }
}
