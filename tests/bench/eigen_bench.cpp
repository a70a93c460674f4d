// eigen_bench: array expressions and fixed-size products of Eigen beside the kernels' own loops, both on
// the lanes of this build's instruction set, in one thread, on data in the caches. Says whether the bits
// are the same.   eigen_bench
#include <time.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "core/base/float_env.h"
#include "backends/cpu/kernels/tile.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

using Work = std::function<void(float*)>;

// Medians of 15 batches of about 2 ms each that take turns.
void compare(const char* what, std::int64_t units, const char* unit, std::int64_t outputs, const Work& own,
             const Work& eigen) {
  const Work* const works[] = {&own, &eigen};
  std::vector<float> y[2];
  std::vector<double> samples[2];
  int times[2];
  for (int w = 0; w < 2; ++w) {
    y[w].assign(static_cast<std::size_t>(outputs), 0.0f);
    (*works[w])(y[w].data());
    const double t = now();
    (*works[w])(y[w].data());
    times[w] = std::max(1, static_cast<int>(2e-3 / std::max(now() - t, 1e-9)));
  }
  for (int r = 0; r < 15; ++r) {
    for (int w = 0; w < 2; ++w) {
      const double t = now();
      for (int i = 0; i < times[w]; ++i) (*works[w])(y[w].data());
      samples[w].push_back((now() - t) / times[w] * 1e9 / static_cast<double>(units));
    }
  }
  for (auto& s : samples) std::nth_element(s.begin(), s.begin() + 7, s.end());
  const bool same = std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)) == 0;
  std::printf("%-30s own %8.4f  Eigen %8.4f ns a %s, %s bits\n", what, samples[0][7], samples[1][7], unit,
              same ? "the same" : "other");
}

std::vector<float> values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}

void elementwise() {
  using Row = Eigen::Map<const Eigen::ArrayXf>;
  using Out = Eigen::Map<Eigen::ArrayXf>;
  constexpr std::int64_t n = 2048;
  const std::vector<float> a = values(n, 1), b = values(n, 2);
  const Row x(a.data(), n), z(b.data(), n);
  compare("add", n, "element", n,
          [&](float* y) {
            for (std::int64_t i = 0; i < n; i += kLanes) {
              store(y + i, add(load(a.data() + i), load(b.data() + i)));
            }
          },
          [&](float* y) { Out(y, n) = x + z; });
  compare("rms_norm", n, "element", n,
          [&](float* y) {
            const F32x16 f = set1(num::rsqrt(num::add(num::mul(tree<true>(a.data(), n), 1.0f / n), 1e-6f)));
            for (std::int64_t i = 0; i < n; i += kLanes) {
              store(y + i, mul(mul(load(a.data() + i), f), load(b.data() + i)));
            }
          },
          [&](float* y) {
            const float f = 1.0f / std::sqrt(x.square().sum() * (1.0f / n) + 1e-6f);
            Out(y, n) = (x * f) * z;
          });
  compare("rms_norm, our sum", n, "element", n,
          [&](float* y) {
            const F32x16 f = set1(num::rsqrt(num::add(num::mul(tree<true>(a.data(), n), 1.0f / n), 1e-6f)));
            for (std::int64_t i = 0; i < n; i += kLanes) {
              store(y + i, mul(mul(load(a.data() + i), f), load(b.data() + i)));
            }
          },
          [&](float* y) {
            const float f = num::rsqrt(num::add(num::mul(tree<true>(a.data(), n), 1.0f / n), 1e-6f));
            Out(y, n) = (x * f) * z;
          });
  compare("swiglu", n, "element", n,
          [&](float* y) {
            for (std::int64_t i = 0; i < n; i += kLanes) {
              store(y + i, mul(silu(load(a.data() + i)), load(b.data() + i)));
            }
          },
          [&](float* y) { Out(y, n) = (x / (1.0f + (-x).exp())) * z; });
}

// y [64, N] = a [64, K] * b, b in panels of 16 columns for the own loop, row-major for Eigen.
template <int K, int N>
void product(const char* what) {
  constexpr int kRows = 64;
  using Left = Eigen::Matrix<float, kRows, K, Eigen::RowMajor>;
  using Right = Eigen::Matrix<float, K, N, Eigen::RowMajor>;
  using To = Eigen::Matrix<float, kRows, N, Eigen::RowMajor>;
  const std::vector<float> a = values(kRows * K, 3), b = values(K * N, 4);
  std::vector<float> panels(b.size());
  for (int k = 0; k < K; ++k) {
    for (int n = 0; n < N; ++n) {
      panels[static_cast<std::size_t>((n / 16 * K + k) * 16 + n % 16)] = b[static_cast<std::size_t>(k * N + n)];
    }
  }
  const auto own = [&](float* y) {
    for_panel_groups(N / 16, [&]<int P>(int p0) {
      for_row_blocks(kRows, [&]<int M>(int m0) {
        Tile<M, P> t;
        clear(t);
        extend(t, a.data() + m0 * K, K, Panels{panels.data() + p0 * K * 16, 16, K * 16}, 0, K);
        for (int m = 0; m < M; ++m) {
          for (int p = 0; p < P; ++p) store(y + (m0 + m) * N + (p0 + p) * 16, t.at[m][p]);
        }
      });
    });
  };
  compare(what, std::int64_t{kRows} * K * N / 1000, "1,000 multiply-adds", kRows * N, own, [&](float* y) {
    Eigen::Map<To>(y).noalias() = Eigen::Map<const Left>(a.data()) * Eigen::Map<const Right>(b.data());
  });
}

}  // namespace

void run() {
  const FloatEnv env;
  elementwise();
  product<64, 64>("64 x 64 times 64 x 64");
  product<128, 64>("64 x 128 times 128 x 64");
  product<128, 128>("64 x 128 times 128 x 128");
  product<64, 256>("64 x 64 times 64 x 256");
}

}  // namespace nibble::cpu::NIBBLE_ISA

int main() {
  nibble::cpu::NIBBLE_ISA::run();
}
