// grouped_bench.cpp: times GroupedLinear on random data, kernel for kernel what a program would launch.
//   data    an image of its own for each expert; one x and y
//   routes  each token has experts at random, all alike likely. Where few experts have tokens several routes take turns,
//           so that each reads memory
#include "backends/cuda/bench/grouped_bench.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "backends/cuda/bench/bench_data.h"
#include "backends/cuda/bench/bench_run.h"
#include "backends/cuda/ops/linear.h"

namespace nibble::cuda {
namespace {

constexpr std::uint64_t kMostRoutes = 64;

std::string text_of(const GroupedShape& s) {
  return std::to_string(s.experts) + " experts of " + std::to_string(s.n) + "x" + std::to_string(s.k);
}

// ExpertRoute's of `rows` tokens.
struct Routes {
  std::vector<std::int32_t> order, starts;
  std::int64_t touched = 0;  // experts with tokens

  Routes(const GroupedShape& s, std::int64_t rows, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::int32_t>> pairs(static_cast<std::size_t>(s.experts));
    std::vector<std::int32_t> experts(static_cast<std::size_t>(s.experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int32_t i = 0; i < s.per_token; ++i) {  // the first k of a shuffle
        const auto other = i + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(s.experts - i));
        std::swap(experts[static_cast<std::size_t>(i)], experts[static_cast<std::size_t>(other)]);
        pairs[static_cast<std::size_t>(experts[static_cast<std::size_t>(i)])].push_back(
            static_cast<std::int32_t>(t * s.per_token + i));
      }
    }
    starts.push_back(0);
    for (const std::vector<std::int32_t>& own : pairs) {
      order.insert(order.end(), own.begin(), own.end());
      starts.push_back(static_cast<std::int32_t>(order.size()));
      touched += !own.empty();
    }
  }
};

class Runner : BenchRun<GroupedBench, GroupedBenchOptions> {
 public:
  Runner(const BackendOptions& options, const GroupedBenchOptions& how)
      : BenchRun(options, how, how.shapes.size() * how.formats.size() * how.rows.size(), "experts") {
    result_.l2_bytes = l2_bytes_;
    step_ = allot(sizeof(StepView), "a step");
  }

  GroupedBench run() {
    return finish([&] {
      at("copies on the device");
      result_.copy_bytes_per_second = copy_rate(timer_, card_.multiprocessors);
      measure_peer();
      for (const GroupedShape& s : how_.shapes) {
        for (const std::string& format : how_.formats) measure_format(s, format);
      }
    });
  }

 private:
  void measure_peer() {
    if (!how_.peer) {
      result_.peer = "not asked for";
      return;
    }
    CublasPeer peer(timer_.stream());
    result_.peer = peer.text();
    result_.has_peer = peer.there();
    if (!peer.there()) return;
    at(result_.peer + ", a large product");
    Block workspace;
    try {
      result_.peer_flops_per_second = product_rate(peer, timer_, card_.multiprocessors, workspace);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      result_.has_peer = false;  // bf16 on an older card
      result_.peer = e.what();
    }
  }

  void measure_format(const GroupedShape& s, const std::string& format) {
    at(text_of(s) + " in " + format);
    Weight w = random_weight(format, {s.n, s.k});
    const std::uint64_t bytes = aligned(image_bytes(w));
    const Block arena = allot(static_cast<std::uint64_t>(s.experts) * bytes, text_of(s) + " in " + format);
    GroupedLinearArgs args;
    args.linear.weight = pack_random(w, arena.data(), path_, timer_.stream());
    for (std::int32_t e = 1; e < s.experts; ++e) {
      check(cudaMemcpyAsync(arena.data() + static_cast<std::uint64_t>(e) * bytes, arena.data(), bytes,
                            cudaMemcpyDeviceToDevice, timer_.stream()),
            "copying a weight");
    }
    args.linear.path = path_;
    args.experts = s.experts;
    args.expert_bytes = static_cast<std::int64_t>(bytes);
    for (const std::int64_t t : how_.rows) {
      at(text_of(s) + " in " + format + ", T " + std::to_string(t));
      measure(s, format, t, bytes, args);
    }
  }

  void measure(const GroupedShape& s, const std::string& format, std::int64_t t, std::uint64_t bytes,
               GroupedLinearArgs args) {
    const std::int64_t places = t * s.per_token, inputs = s.by_place ? places : t;
    const Block x = allot(static_cast<std::uint64_t>(2 * inputs * s.k), "x"),
                y = allot(static_cast<std::uint64_t>(2 * places * s.n), "y");
    fill_random(timer_.stream(), card_.multiprocessors, x, static_cast<std::uint64_t>(inputs * s.k), 4, 1, false);
    const Rows rows = s.by_place ? Rows::routed : Rows::tokens;
    args.linear.x = {x.data(), DType::bf16, rows, s.k, static_cast<std::int32_t>(s.k), nullptr};
    args.linear.y = {y.data(), DType::bf16, Rows::routed, s.n, static_cast<std::int32_t>(s.n), nullptr};

    std::vector<Routes> routes = {Routes(s, t, 1)};
    const std::uint64_t each = static_cast<std::uint64_t>(routes.front().touched) * bytes;
    const std::uint64_t count = std::min(4 * result_.l2_bytes / each + 2, kMostRoutes);
    while (each < 4 * result_.l2_bytes && routes.size() < count) routes.emplace_back(s, t, routes.size() + 1);
    const std::uint64_t of_order = aligned(static_cast<std::uint64_t>(places) * 4),
                        of_routes = of_order + aligned(static_cast<std::uint64_t>(s.experts + 1) * 4);
    const Block on_device = allot(routes.size() * of_routes, "routes");
    double touched = 0;
    for (std::size_t r = 0; r < routes.size(); ++r) {
      std::byte* const to = on_device.data() + r * of_routes;
      check(cudaMemcpy(to, routes[r].order.data(), routes[r].order.size() * 4, cudaMemcpyHostToDevice), "sending routes");
      check(cudaMemcpy(to + of_order, routes[r].starts.data(), routes[r].starts.size() * 4, cudaMemcpyHostToDevice),
            "sending routes");
      touched += static_cast<double>(routes[r].touched) / static_cast<double>(routes.size());
    }

    Launch to = timer_.launch(t, step_.data(), card_.multiprocessors);
    to.experts_per_token = s.per_token;
    const auto time = [&](int tile) {
      return timer_.measure(static_cast<int>(routes.size()), [&, tile](int copy) {
        GroupedLinearArgs own = args;
        own.linear.tile = tile;
        own.order = reinterpret_cast<const std::int32_t*>(on_device.data() + static_cast<std::uint64_t>(copy) * of_routes);
        own.starts = own.order + of_order / 4;
        grouped_linear(to, own);
      });
    };
    GroupedBenchRow row;
    row.shape = s;
    row.format = format;
    row.rows = t;
    row.touched = touched;
    row.bytes = static_cast<std::uint64_t>(touched * static_cast<double>(bytes)) +
                static_cast<std::uint64_t>(2 * (inputs * s.k + places * s.n));
    row.cold = each > 4 * result_.l2_bytes || (routes.size() - 1) * each > 4 * result_.l2_bytes;
    row.kernel = grouped_linear_kernel(to, args);
    row.choices = grouped_linear_choices(to, args);
    GroupedLinearArgs plain = args;
    plain.linear.tile = kPlainTile;
    row.plain_kernel = grouped_linear_kernel(to, plain);
    row.plain = time(kPlainTile);
    row.ours = time(-1);
    result_.rows.push_back(row);
    const std::vector<LinearTile> tiles = how_.tiles ? grouped_linear_tiles(to, args) : std::vector<LinearTile>{};
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      if (!tiles[i].refusal.empty()) continue;
      row.tile = tiles[i].name;
      row.ours = time(static_cast<int>(i));
      result_.rows.push_back(row);
    }
  }

  Block step_;
};

}  // namespace

GroupedBench bench_grouped(const BackendOptions& options, const GroupedBenchOptions& how) {
  return Runner(options, how).run();
}

}  // namespace nibble::cuda
