// vector_bench: how near the ops beside Linear come to the machine, kernel by kernel in one thread, on
// data that stays in the caches.   vector_bench [kernels] [filter]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/float_env.h"
#include "backends/cpu/bf16_unit.h"
#include "backends/cpu/kernels/sequence_kernels.h"
#include "backends/cpu/mirror.h"
#include "backends/cpu/ops/quantize.h"
#include "backends/cpu/ops/rowwise.h"
#include "core/numerics/codecs.h"

namespace {

using namespace nibble;

std::string filter;

// The thread's own processor time: neighbours on the machine then matter less.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Median of 15 batches of about 4 ms.
double seconds_of(const std::function<void()>& work) {
  double t = now();
  work();
  const int times = std::max(1, static_cast<int>(4e-3 / std::max(now() - t, 1e-9)));
  std::vector<double> samples;
  for (int r = 0; r < 15; ++r) {
    t = now();
    for (int i = 0; i < times; ++i) work();
    samples.push_back((now() - t) / times);
  }
  std::nth_element(samples.begin(), samples.begin() + 7, samples.end());
  return samples[7];
}

void element(const char* what, std::int64_t elements, const std::function<void()>& work) {
  if (std::string(what).find(filter) == std::string::npos) return;
  std::printf("%-34s %8.3f ns an element\n", what, seconds_of(work) * 1e9 / static_cast<double>(elements));
}

void flop(const char* what, double flops, const std::function<void()>& work) {
  if (std::string(what).find(filter) == std::string::npos) return;
  const double s = seconds_of(work);
  std::printf("%-34s %8.1f us  %7.1f GFLOP/s\n", what, s * 1e6, flops / s * 1e-9);
}

std::vector<float> values(std::int64_t count, unsigned seed, float size) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}

constexpr std::int64_t kRows = 8;

void rowwise(cpu::Isa isa, cpu::Parallel& one) {
  constexpr std::int64_t cols = 2048, n = kRows * cols;
  const std::vector<float> a = values(n, 1, 3), b = values(n, 2, 3);
  std::vector<float> y(n);
  const cpu::In x{a.data(), cols}, z{b.data(), cols};
  const cpu::Out to{y.data(), cols};
  element("add", n, [&] { cpu::add(isa, one, kRows, cols, x, z, to); });
  element("swiglu", n, [&] { cpu::swiglu(isa, one, kRows, cols, x, z, to); });
  element("sigmoid_gate", n, [&] { cpu::sigmoid_gate(isa, one, kRows, 8, 256, x, z, 256, to); });
  element("rms_norm", n, [&] { cpu::rms_norm(isa, one, kRows, cols, x, b.data(), 1e-6f, to); });
  element("gated_rms_norm, 128", n, [&] { cpu::gated_rms_norm(isa, one, kRows, 16, 128, x, z, b.data(), 1e-6f, to); });
  element("rounding to bf16", n, [&] { cpu::round_bf16(isa, one, kRows, cols, to); });
  std::vector<std::int32_t> exponents(kRows);
  element("rounding to f16", n, [&] { cpu::round_f16(isa, one, kRows, cols, to, exponents.data()); });
}

void quantize(cpu::Isa isa, cpu::Parallel& one) {
  using Kind = ActivationFormat::Kind;
  constexpr std::int64_t cols = 2048, n = kRows * cols;
  const std::vector<float> x = values(n, 3, 3);
  std::vector<std::uint8_t> codes(n);
  std::vector<float> scales(n);
  for (const Kind kind : {Kind::nvfp4_static, Kind::fp8_tensor_static, Kind::fp8_token, Kind::fp8_token_group128}) {
    const std::string name = std::string("quantize ") + activation_format_name(kind);
    const cpu::QuantizeArgs a{kRows, cols, {kind, 0.01f}, x.data(), cols, codes.data(), cols, scales.data(), cols / 16};
    element(name.c_str(), n, [&] { cpu::quantize(isa, one, a); });
  }
}

void delta(const cpu::SequenceKernels& k) {
  constexpr int dim = 128, kernel = 4, rows = 64, heads = 16;
  const std::vector<float> taps = values(kernel * dim, 4, 0.5f), raw = values(kernel * dim, 5, 1);
  std::vector<float> y(rows * dim);
  const float* at[kernel] = {raw.data(), raw.data() + dim, raw.data() + 2 * dim, raw.data() + 3 * dim};
  for (const bool norm : {false, true}) {
    element(norm ? "conv, 128, l2 norm" : "conv, 128", dim,
            [&] { k.conv({at, taps.data(), dim, kernel, dim, norm, 1, y.data()}); });
  }
  std::vector<float> g(rows * heads), beta(rows * heads);
  element("gates, 64 x 16", rows * heads, [&] {
    k.gates({raw.data(), raw.data(), taps.data(), taps.data(), g.data(), beta.data(), 1, 1, heads, heads, rows, heads});
  });

  constexpr int all = 3 * heads * dim, chunks = 8;  // rows lie apart as in a model
  const std::vector<float> qkv = values(chunks * rows * all, 6, 0.088f);
  std::vector<float> s(heads * dim * dim), records(dim), work(static_cast<std::size_t>(cpu::delta_work_floats(dim))),
      o(chunks * rows * heads * dim);
  g.assign(chunks * rows, -0.05f);
  beta.assign(chunks * rows, 0.5f);
  cpu::DeltaTask t{};
  t.panels = dim / cpu::kPanel;
  t.key_dim = t.columns = dim;
  t.g = g.data();
  t.beta = beta.data();
  t.qkv_stride = all;
  t.g_stride = t.beta_stride = 1;
  t.y_stride = heads * dim;
  t.work = work.data();
  t.new_u = records.data();
  const auto each_head = [&](auto kernel_of, int count) {
    t.rows = count;
    for (int h = 0; h < heads; ++h) {
      t.s = s.data() + h * dim * dim;
      t.q = qkv.data() + h * dim;
      t.k = t.q + heads * dim;
      t.v = t.k + heads * dim;
      t.y = o.data() + h * dim;
      kernel_of(t);
    }
  };
  const double full = 3.0 * rows * dim * dim, half = 0.5 * rows * rows * dim * 4;
  // What one thread does where a head is cut by columns: all of it, a half, a quarter, an eighth.
  for (const int panels : {8, 4, 2, 1}) {
    t.panels = panels;
    t.columns = panels * cpu::kPanel;
    const double products = 2 * 0.5 * rows * rows * dim, columns = t.columns * (3.0 * rows * dim + rows * rows);
    const std::string name = "delta_chunks, 512 rows, 16 x " + std::to_string(t.columns);
    flop(name.c_str(), 2 * (products + columns) * heads * chunks, [&] { each_head(k.delta_chunks, chunks * rows); });
  }
  t.panels = dim / cpu::kPanel;
  t.columns = dim;
  std::vector<float> units_work(static_cast<std::size_t>(cpu::delta_units_work_floats(dim)));
  std::vector<float> exact = qkv;
  for (float& x : exact) x = num::bf16_to_float(num::float_to_bf16(x));
  t.work = units_work.data();
  const auto units = [&](const char* name, auto kernel) {
    flop(name, 2 * (3.0 * rows * dim * dim + 3.25 * rows * rows * dim), [&] {
      t.rows = rows;
      t.s = s.data();
      t.q = exact.data();
      t.k = t.q + heads * dim;
      t.v = t.k + heads * dim;
      t.y = o.data();
      kernel(t);
    });
  };
  units("delta_units_sm90, 64 rows of a head", k.delta_units_sm90);
  units("delta_units_sm70, 64 rows of a head", k.delta_units_sm70);
  t.work = work.data();
  std::fill(g.begin(), g.end(), -1.4f);  // exponentials of a chunk pass the smallest normal number
  flop("delta_chunks, strong decay", 2 * (full + half) * heads * chunks,
       [&] { each_head(k.delta_chunks, chunks * rows); });
  std::fill(g.begin(), g.end(), -0.05f);
  flop("delta_step, 16 x 128", 6.0 * dim * dim * heads, [&] { each_head(k.delta_step, 1); });
}

void attention(const cpu::SequenceKernels& k) {
  constexpr int dim = 256, tiles = 8;
  const std::int64_t page = 2 * dim * cpu::kTile;
  const std::vector<float> kv = values(tiles * page, 7, 0.5f), q = values(48 * dim, 8, 0.5f);
  std::vector<float> o(48 * dim), scores(48 * cpu::kTile), m(48), l(48), factor(48);
  std::vector<int> count(48);
  std::vector<std::int32_t> pages(tiles);
  std::iota(pages.begin(), pages.end(), 0);
  for (const int queries : {48, 4, 1}) {
    const std::vector<std::int64_t> last(48, tiles * cpu::kTile - 1);
    const std::string name = "attend, " + std::to_string(queries) + " queries of 256";
    flop(name.c_str(), 4.0 * queries * dim * tiles * cpu::kTile, [&] {
      k.attend({q.data(), last.data(), queries, dim, 0.0625f, kv.data(), page, pages.data(), 0, tiles, m.data(),
                l.data(), o.data(), scores.data(), factor.data(), count.data()});
    });
  }
  std::vector<float> work(static_cast<std::size_t>(cpu::attend_units_work_floats(dim))), exact = kv, near = q;
  for (std::vector<float>* all : {&exact, &near}) {
    for (float& x : *all) x = num::bf16_to_float(num::float_to_bf16(x));
  }
  const std::int64_t end = tiles * cpu::kTile;
  flop("attend_units, 16 rows of 256", 4.0 * 16 * dim * tiles * cpu::kTile, [&] {
    k.attend_units({near.data(), dim, 16, dim, end - 16, 1, end, 0.0625f, exact.data(), page, pages.data(), 0, tiles, nullptr, nullptr, o.data(), dim,
                    work.data()});
  });
  const std::vector<float> rope = values(64, 9, 1), w = values(dim, 10, 1);
  element("rope, 256, to rows", dim, [&] { k.rope({q.data(), w.data(), rope.data(), 1e-6f, dim, 64, o.data(), 1}); });
  element("rope, 256, to a page", dim,
          [&] { k.rope({q.data(), w.data(), rope.data(), 1e-6f, dim, 64, const_cast<float*>(kv.data()), cpu::kPanel}); });
}

// What an op costs that has almost nothing to do, from outside and from inside another arena.
void handing_out(int threads) {
  cpu::Parallel many(threads);
  std::vector<std::int64_t> sums(static_cast<std::size_t>(threads) * 8);
  const auto work = [&] {
    many(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++sums[static_cast<std::size_t>(i * 8)];
    });
  };
  const auto microseconds = [&] {
    std::vector<double> samples;
    for (int r = 0; r < 15; ++r) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 1000; ++i) work();
      samples.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e3);
    }
    std::nth_element(samples.begin(), samples.begin() + 7, samples.end());
    return samples[7];
  };
  oneapi::tbb::task_arena program(2);
  double inside = 0;
  const double outside = microseconds();
  program.execute([&] { inside = microseconds(); });
  std::printf("an op handed to %d threads       %8.2f us, from inside an arena of 2 %8.2f us\n", threads, outside, inside);
}

}  // namespace

int main(int argc, char** argv) {
  const cpu::Isa isa = cpu::kernels_from_name(argc > 1 ? argv[1] : "", false).isa;
  filter = argc > 2 ? argv[2] : "";
  const FloatEnv env;
  cpu::Parallel one(1);
  rowwise(isa, one);
  quantize(isa, one);
  const cpu::SequenceKernels& sequence = cpu::sequence_kernels(cpu::isa_name(isa));
  delta(sequence);
  attention(sequence);
  if (filter.empty() || filter == "threads") handing_out(2);
}
