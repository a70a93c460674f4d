// linear_bench.cpp: times Linear on random data, kernel for kernel what a program would launch.
//   data   one x and y for each shape; few rows take copies of the weight in turn, so that each reads memory. a8: x is
//          quantised in each launch
//   peer   the same shape in cuBLAS, bf16, on weights of its own, once for all formats
#include "backends/cuda/bench/linear_bench.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/ops/linear.h"
#include "backends/cuda/ops/rowwise.h"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kColdRows = 16;  // up to here a step reads weights and does little else
constexpr std::uint64_t kMostCopies = 1024;
constexpr std::int64_t kProductRows = 256;  // more than that: loads are not the limit

std::string text_of(const LinearShape& s) { return std::to_string(s.n) + "x" + std::to_string(s.k); }

class Runner : BenchRun<LinearBench, LinearBenchOptions> {
 public:
  Runner(const BackendOptions& options, const LinearBenchOptions& how)
      : BenchRun(options, how, how.shapes.size() * how.formats.size() * how.rows.size(), nullptr) {
    result_.l2_bytes = l2_bytes_;
    most_rows_ = *std::max_element(how.rows.begin(), how.rows.end());
    few_ = *std::min_element(how.rows.begin(), how.rows.end()) <= kColdRows;
    step_ = allot(sizeof(StepView), "a step");
    sums_ = allot(linear_sums_bytes(path_, card_.multiprocessors), "partial sums");
    check(cudaMemsetAsync(sums_.data(), 0, sums_.bytes(), timer_.stream()), "clearing partial sums");
  }

  LinearBench run() {
    return finish([&] {
      measure_copy();
      start_peer();
      for (const LinearShape& s : how_.shapes) measure_shape(s);
      if (how_.together) measure_together();
    });
  }

 private:
  void fill(const Block& block, std::uint64_t count, std::uint64_t seed, float scale, bool f16) {
    fill_random(timer_.stream(), card_.multiprocessors, block, count, seed, scale, f16);
  }

  void measure_copy() {
    at("copies on the device");
    result_.copy_bytes_per_second = copy_rate(timer_, card_.multiprocessors);
  }

  // The rate of a large product is the roof whichever rows are asked for.
  void start_peer() {
    if (!how_.peer) {
      result_.peer = "not asked for";
      return;
    }
    peer_.emplace(timer_.stream());
    result_.peer = peer_->text();
    result_.has_peer = peer_->there();
    if (!peer_->there()) return;
    at(result_.peer + ", a large product");
    try {
      result_.peer_flops_per_second = product_rate(*peer_, timer_, card_.multiprocessors, workspace_);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      result_.has_peer = false;  // bf16 on an older card
      result_.peer = e.what();
    }
  }
  void saw_peer(double flops, const LaunchTimes& times) {
    result_.peer_flops_per_second = std::max(result_.peer_flops_per_second, flops / times.median);
  }

  // Copies of `bytes` between whose uses lies more than four times the L2, where few rows are measured.
  std::uint64_t copies_of(std::uint64_t bytes) const {
    return few_ ? std::min(4 * result_.l2_bytes / bytes + 2, kMostCopies) : 1;
  }
  bool cold(std::uint64_t copies, std::uint64_t bytes, std::int64_t rows) const {
    return rows <= kColdRows && (copies - 1) * bytes > 4 * result_.l2_bytes;
  }
  static int used(std::uint64_t copies, std::int64_t rows) {
    return rows <= kColdRows ? static_cast<int>(copies) : 1;
  }

  void measure_shape(const LinearShape& s) {
    const auto inputs = static_cast<std::uint64_t>(most_rows_ * s.k);
    const bool f16 = operand_of(path_) == DType::f16;
    x_ = {};
    y_ = {};
    x_ = allot(2 * inputs, "x of " + text_of(s));
    y_ = allot(static_cast<std::uint64_t>(most_rows_ * s.n) * (f16 ? 4 : 2), "y of " + text_of(s));
    fill(x_, inputs, 4, 1, false);
    std::vector<LinearBenchRow> peer(how_.rows.size());
    if (result_.has_peer) measure_peer(s, peer);
    if (f16) fill(x_, inputs, 4, 1, true);
    for (const std::string& format : how_.formats) measure_format(s, format, peer);
  }

  void measure_peer(const LinearShape& s, std::vector<LinearBenchRow>& rows) {
    const std::uint64_t bytes = aligned(2 * static_cast<std::uint64_t>(s.n * s.k)), copies = copies_of(bytes);
    const Block w = allot(copies * bytes, "weights of " + text_of(s) + " for cuBLAS");
    fill(w, copies * bytes / 2, 5, 1.0f / 64, false);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t t = how_.rows[i];
      at("cuBLAS " + text_of(s) + ", T " + std::to_string(t));
      rows[i].peer = timer_.measure(used(copies, t), [&](int copy) {
        peer_->gemm(s.n, s.k, t, w.data() + static_cast<std::uint64_t>(copy) * bytes, x_.data(), y_.data());
      });
      rows[i].peer_cold = cold(copies, bytes, t);
      rows[i].shape = s;
      rows[i].rows = t;
      saw_peer(rows[i].flops(), rows[i].peer);
    }
  }

  // What a shape's launches read and write beside the weight; a8: x is quantised before each.
  struct Given {
    Given(Runner& r, const LinearShape& s, bool a8, std::byte* x, std::byte* y)
        : shape(s), f16(operand_of(r.path_) == DType::f16), quantised(a8),
          exponents(allot(f16 ? static_cast<std::uint64_t>(r.most_rows_) * sizeof(std::int32_t) : 0, "x")),
          codes(allot(a8 ? static_cast<std::uint64_t>(r.most_rows_ * s.k) : 0, "codes of x")),
          scales(allot(a8 ? static_cast<std::uint64_t>(r.most_rows_) * sizeof(float) : 0, "scales of x")) {
      if (f16) check(cudaMemsetAsync(exponents.data(), 0, exponents.bytes(), r.timer_.stream()), "clearing");
      const auto k = static_cast<std::int32_t>(s.k), n = static_cast<std::int32_t>(s.n);
      args.path = r.path_;
      args.x = {x, operand_of(r.path_), Rows::tokens, s.k, k,
                f16 ? reinterpret_cast<std::int32_t*>(exponents.data()) : nullptr};
      args.y = {y, f16 ? DType::f32 : DType::bf16, Rows::tokens, s.n, n, nullptr};
      if (!a8) return;
      pack = {args.x, {ActivationFormat::Kind::fp8_token, 0.0f}, {codes.data(), DType::u8, Rows::tokens, s.k, k}, {}};
      pack.scales = {scales.data(), DType::f32, Rows::tokens, 1, 1};
      args.x = pack.codes;
      args.x_scales = pack.scales;
      args.format = pack.format;
    }
    std::uint64_t bytes(std::int64_t t) const {
      return static_cast<std::uint64_t>(t * (2 * shape.k + (f16 ? 4 : 2) * shape.n));
    }
    void run(const Launch& to, const LinearArgs& of) const {
      if (quantised) quantize(to, pack);
      linear(to, of);
    }
    LinearShape shape;
    bool f16, quantised;
    Block exponents, codes, scales;
    LinearArgs args;
    QuantizeArgs pack;
  };

  // Every shape's weight once in a round: none is in the L2 when it comes again if all are four times as large.
  void measure_together() {
    const bool f16 = operand_of(path_) == DType::f16;
    for (const std::string& format : how_.formats) {
      std::vector<Block> blocks;
      std::vector<std::unique_ptr<Given>> all;
      LinearBenchRow row;
      row.format = format;
      row.together = how_.shapes;
      for (const LinearShape& s : how_.shapes) {
        at("weights of " + text_of(s) + " in " + format);
        const auto inputs = static_cast<std::uint64_t>(most_rows_ * s.k);
        std::byte* const x = blocks.emplace_back(allot(2 * inputs, "x of " + text_of(s))).data();
        fill(blocks.back(), inputs, 4, 1, f16);
        std::byte* const y = blocks.emplace_back(
            allot(static_cast<std::uint64_t>(most_rows_ * s.n) * (f16 ? 4 : 2), "y of " + text_of(s))).data();
        Weight w = random_weight(format, s);
        row.weight_bytes += image_bytes(w);
        const Block& arena = blocks.emplace_back(allot(aligned(image_bytes(w)), "weights of " + text_of(s)));
        all.push_back(std::make_unique<Given>(*this, s, format == "a8", x, y));
        all.back()->args.weight = pack_random(w, arena.data(), path_, timer_.stream(), format == "a8");
      }
      for (const std::int64_t t : how_.rows) {
        at(format + ", all shapes, T " + std::to_string(t));
        row.rows = t;
        row.bytes = row.weight_bytes;
        for (const auto& g : all) row.bytes += g->bytes(t);
        row.cold = t <= kColdRows && row.weight_bytes > 4 * result_.l2_bytes;
        const Launch to = launch(t);
        row.kernel = linear_kernel(to, all.front()->args);
        row.ours = timer_.measure(2, [&](int) {  // in a graph
          for (const auto& g : all) g->run(to, g->args);
        });
        result_.rows.push_back(row);
      }
    }
  }

  // `peer`: rows with the peer's times.
  void measure_format(const LinearShape& s, const std::string& format,
                      const std::vector<LinearBenchRow>& peer) {
    at("weights of " + text_of(s) + " in " + format);
    Weight w = random_weight(format, s);
    const std::uint64_t bytes = aligned(image_bytes(w)), copies = copies_of(bytes);
    const Block arena = allot(copies * bytes, "weights of " + text_of(s) + " in " + format);
    const bool a8 = format == "a8";
    const WeightImage image = pack_random(w, arena.data(), path_, timer_.stream(), a8);
    for (std::uint64_t c = 1; c < copies; ++c) {
      check(cudaMemcpyAsync(arena.data() + c * bytes, arena.data(), bytes, cudaMemcpyDeviceToDevice,
                            timer_.stream()),
            "copying a weight");
    }
    Given given(*this, s, a8, x_.data(), y_.data());
    LinearArgs& args = given.args;
    args.weight = image;
    for (std::size_t i = 0; i < how_.rows.size(); ++i) {
      const std::int64_t t = how_.rows[i];
      at(format + " " + text_of(s) + ", T " + std::to_string(t));
      LinearBenchRow row = peer[i];
      row.shape = s;
      row.format = format;
      row.rows = t;
      const Launch to = launch(t);
      row.kernel = linear_kernel(to, args);
      row.choices = linear_choices(to, args);
      row.weight_bytes = image_bytes(w);
      row.bytes = row.weight_bytes + given.bytes(t);
      row.cold = cold(copies, bytes, t);
      const auto measure = [&](int tile) {
        row.ours = timer_.measure(used(copies, t), [&](int copy) {
          LinearArgs of_copy = args;
          of_copy.weight = moved(image, static_cast<std::uint64_t>(copy) * bytes);
          of_copy.tile = tile;
          given.run(to, of_copy);
        });
        result_.rows.push_back(row);
      };
      measure(-1);
      if (how_.products && t > kProductRows && row.kernel == "wgmma.m64k16") {
        args.unfed = true;
        row.tile = "products alone";
        measure(-1);
        args.unfed = false;
      }
      const std::vector<LinearTile> tiles = how_.tiles ? linear_tiles(to, args) : std::vector<LinearTile>{};
      for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
        if (!tiles[tile].refusal.empty()) continue;
        row.tile = tiles[tile].name;
        measure(static_cast<int>(tile));
      }
    }
  }

  Launch launch(std::int64_t rows) const {
    Launch to = timer_.launch(rows, step_.data(), card_.multiprocessors);
    to.sums = sums_.data();
    return to;
  }

  std::optional<CublasPeer> peer_;
  std::int64_t most_rows_ = 0;
  bool few_ = false;
  Block step_, workspace_, sums_, x_, y_;
};

}  // namespace

LinearBench bench_linear(const BackendOptions& options, const LinearBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
