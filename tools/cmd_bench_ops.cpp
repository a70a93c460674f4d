// cmd_bench_ops.cpp: `nibble bench ops`: one op by itself; linear beside the vendor's library.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "core/base/quote.h"
#include "nibble/op_bench.h"
#include "tools/args.h"
#include "tools/bench_attention_report.h"
#include "tools/bench_delta_report.h"
#include "tools/bench_gate_up_report.h"
#include "tools/bench_grouped_report.h"
#include "tools/bench_ops_report.h"
#include "tools/bench_pack_report.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(Rows: linear, y[T, N] = x[T, K] w[N, K]^T, for each shape, weight format and T, on random data: x and y
bf16, fp8 with row scales, nvfp4 with a tensor scale; a8: fp8 by fp8 as in mode a8, with the op that quantises x
before it, timed together. us is of one launch, the median over the batches of
-r ± half the distance of their quartiles; a batch is launched back to back, at least 5 launches and about
2 ms. GB/s counts the weight as stored, x and y. Up to T 16 copies of the weight take turns, so that more than
four times the L2 is read between two uses of one ("cold").
The peer is cuBLAS, bf16 weights, x and y, float32 sums; it is looked for at run time. Roofs, of the same run:
bytes by a copy on the device, operations by the fastest product of the peer. Rows that are not cold may pass
100 %: the L2 serves them. peer/ours over 1: we are faster.

--op pack: RmsNorm, the delta net's gated norm and SwiGLU of these models by themselves, with the op behind
them that quantises what they make, and both fused; on the CPU too, where a mirror's rounding counts as well.
--formats are of what is made: nvfp4_static, fp8_tensor_static, fp8_token, fp8_token_group128.

--op grouped: the linears of a mixture of experts, beside the plain kernel in the same run. Each token has k experts
at random, all alike likely; GB/s counts the weights of those that have tokens, x and y. Routes take turns where few
experts have tokens, so that more than four times the L2 is read between two uses of one ("cold").
--shapes qwen3_next: 10 of 512 experts, gate and up together (1024x2048, a row of x for each token) and down
(2048x512, a row for each token and expert).

--op gate-up: the linear layers of an MLP's gate and up by themselves, with SwiGLU behind them, and all three as
one (a card's default, cuda:fused-swiglu=off for three); shapes are of either weight, 27b has 17408x5120.

--op delta: the gated delta rule of one layer, -t rows of a prompt (1: a step of decoding) of each of --sequences;
shapes are 27b (16 key heads, 48 value heads, 128x128), 27b-tp2 and 27b-tp4, beside a copy of what must be moved; and
the whole net between its projections and its output (convolution, gates, rule, gated norm), beside a copy of its state.

--op attention: the attention of one layer, prompts of -t rows (default 512,2048,8192,16384 without --depth) and steps of
decoding behind --depth positions, of each of --sequences. TFLOP/s counts two multiply-adds for each pair of a row and a
position and head column, a prompt's pairs at half; GB/s the keys and values that a step reads. Beside them the parts of
the measured products (cuBLAS) and copies that they reach. Steps take copies of their keys in turn until four times the
L2 lies between two uses ("cold"). Shapes are 27b (24 query heads, 4 kv heads, 256), 27b-tp2, 27b-tp4 and QxKVxD:
query heads, kv heads and head size. PyTorch's kernels on the same shapes: tools/peer_attention.py.

Shapes: 27b has the linears of a 27B model (34816x5120, 5120x17408, 16384x5120, 14336x5120, 5120x6144);
27b-tp2 and 27b-tp4 the parts of one card of two or four.

Examples:
  nibble bench ops --op linear --device cuda
  nibble bench ops --device cuda:1 --shapes 27b-tp2 --formats nvfp4,fp8 -t 1,8,64 -o csv
  nibble bench ops --device cuda --shapes 4096x4096 --formats nvfp4 -t 16 --explain --peer none
  nibble bench ops --op grouped --device cuda --formats nvfp4 -t 1,8,64,512,2048 --explain
  nibble bench ops --op pack --device cuda --formats nvfp4_static -t 1,2048
  nibble bench ops --op gate-up --device cuda -t 1,8,64,2048
  nibble bench ops --op delta --device cuda -t 1,2048,8192 --sequences 1,4
  nibble bench ops --op attention --device cuda -t 512,2048,8192,16384
  nibble bench ops --op attention --device cuda --depth 4096,16384,131072 --sequences 1,8,64)";

constexpr std::int64_t kMostSequenceRows = 1 << 17;
constexpr const char* kShapesExpected = "27b, 27b-tp2, 27b-tp4 or NxK separated by commas";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::vector<LinearShape> parse_shapes(const std::string& text) {
  for (const int cards : {1, 2, 4}) {
    if (text != (cards == 1 ? "27b" : fmt::format("27b-tp{}", cards))) continue;
    // Those that split their rows, and those that split their columns.
    return {{34816 / cards, 5120}, {5120, 17408 / cards}, {16384 / cards, 5120}, {14336 / cards, 5120},
            {5120, 6144 / cards}};
  }
  std::vector<LinearShape> shapes;
  for (const std::string& part : split(text)) {
    LinearShape s;
    const char *begin = part.data(), *end = begin + part.size();
    const auto n = std::from_chars(begin, end, s.n);
    const bool more = n.ec == std::errc() && n.ptr != end && *n.ptr == 'x';
    const auto k = std::from_chars(more ? n.ptr + 1 : end, end, s.k);
    if (!more || k.ec != std::errc() || k.ptr != end || s.n < 1 || s.k < 1) {
      throw usage_error(fmt::format("--shapes: expected {}, found {}", kShapesExpected, in_quotes(text)));
    }
    shapes.push_back(s);
  }
  return shapes;
}

std::vector<LinearShape> gate_up_shapes(const std::string& text) {
  for (const int cards : {1, 2, 4}) {
    if (text == (cards == 1 ? "27b" : fmt::format("27b-tp{}", cards))) return {{17408 / cards, 5120}};
  }
  return parse_shapes(text);
}

std::vector<PackShape> pack_shapes(const std::string& text) {
  for (const int cards : {1, 2, 4}) {
    if (text != (cards == 1 ? "27b" : fmt::format("27b-tp{}", cards))) continue;
    return {{"rms_norm", 5120, 0}, {"gated_rms_norm", 6144 / cards, 128}, {"swiglu", 17408 / cards, 0}};
  }
  throw usage_error(fmt::format("--shapes: expected 27b, 27b-tp2 or 27b-tp4 with --op pack, found {}",
                                in_quotes(text)));
}

std::vector<DeltaBenchShape> delta_shapes(const std::string& text) {
  for (const int cards : {1, 2, 4}) {
    if (text == (cards == 1 ? "27b" : fmt::format("27b-tp{}", cards))) return {{16 / cards, 48 / cards, 128, 128}};
  }
  throw usage_error(fmt::format("--shapes: expected 27b, 27b-tp2 or 27b-tp4 with --op delta, found {}", in_quotes(text)));
}

std::vector<AttentionBenchShape> attention_shapes(const std::string& text) {
  for (const int cards : {1, 2, 4}) {
    if (text == (cards == 1 ? "27b" : fmt::format("27b-tp{}", cards))) return {{24 / cards, 4 / cards, 256}};
  }
  std::vector<AttentionBenchShape> shapes;
  for (const std::string& part : split(text)) {
    AttentionBenchShape s;
    const char *at = part.data(), *end = at + part.size();
    bool good = true;
    for (std::int32_t* const size : {&s.heads, &s.kv_heads, &s.head_dim}) {
      if (size != &s.heads) good = good && at != end && *at++ == 'x';
      const auto read = good ? std::from_chars(at, end, *size) : std::from_chars_result{at, std::errc::invalid_argument};
      good = read.ec == std::errc() && *size >= 1;
      at = read.ptr;
    }
    if (!good || at != end || s.heads % s.kv_heads != 0) {
      throw usage_error(fmt::format("--shapes: expected 27b, 27b-tp2, 27b-tp4 or QxKVxD (query heads, a divisor of them as kv "
                                    "heads, head size) separated by commas with --op attention, found {}", in_quotes(text)));
    }
    shapes.push_back(s);
  }
  return shapes;
}

std::vector<GroupedShape> grouped_shapes(const std::string& text) {
  if (text == "qwen3_next") return {{512, 10, 1024, 2048, false}, {512, 10, 2048, 512, true}};
  throw usage_error(fmt::format("--shapes: expected qwen3_next with --op grouped, found {}", in_quotes(text)));
}

class BenchOps final : public Command {
 public:
  explicit BenchOps(CLI::App& bench) : Command(bench, "ops", "single ops, linear beside cuBLAS", kFooter) {
    add_choice(app(), "--op", op_, {"linear", "grouped", "gate-up", "pack", "delta", "attention"}, "which op");
    not_empty(app().add_option("--device,--backend", on_,
                               "a card: cuda, cuda:1, cuda:arch-path=sm90 (default: the best that is there)"))
        ->type_name("NAME");
    app().add_option("--shapes", shapes_, std::string(kShapesExpected) + " (--op grouped: qwen3_next)")->type_name("LIST")->capture_default_str();
    app()
        .add_option("--formats", formats_,
                    "of the weight: nvfp4, fp8, bf16 (default: these), a8; of what is packed: see below (default: "
                    "nvfp4_static,fp8_token); separated by commas")
        ->type_name("LIST");
    add_list(app(), "-t,--tokens", rows_, "T: rows of x (--op delta: 1,512,2048,8192 unless given; --op attention: see below)");
    add_list(app(), "--sequences", sequences_, "of --op delta and attention: sequences that run together");
    add_list(app(), "--depth", depths_, "of --op attention: positions that each sequence of a step of decoding holds");
    not_empty(app().add_option("--save", save_, "of --op delta: a folder that takes inputs and outputs of its prompts, of at "
                                                "most 16,384 rows of bf16, as safetensors, for a peer (tools/peer_fla.py)"))
        ->type_name("DIR");
    add_int(app(), "-r,--repetitions", how_.repetitions, 1, 10000, "measured batches of each row");
    add_choice(app(), "--peer", peer_, {"cublas", "none"}, "what to compare with");
    app().add_flag("--tiles", how_.tiles, "a row for each tile of the kernel too, not only the one it chooses");
    app().add_flag("--together", how_.together,
                   "rows for all shapes one after the other too, as a layer's linears run");
    app().add_flag("--products", how_.products, "a row for T over 256 without the loads too: what the products take");
    app().add_flag("--explain", explain_, "every kernel that was looked at and why it served or not");
    add_choice(app(), "-o,--output", output_, {"md", "json", "csv"}, "format of the result");
    messages_.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(messages_.verbosity());
    if (const auto extra = app().remaining(); !extra.empty()) {
      throw usage_error(fmt::format("bench ops: expected an option of this command, found {}; see nibble bench "
                                    "ops --help",
                                    in_quotes(extra.front())));
    }
    if (explain_ && output_ == "csv") throw usage_error("--explain: expected md or json output, found csv");
    if (op_ != "delta" && op_ != "attention" && app().count("--sequences") > 0) {
      throw usage_error(fmt::format("--op {}: expected no --sequences, which is of delta and attention", op_));
    }
    if (op_ != "attention" && app().count("--depth") > 0) {
      throw usage_error(fmt::format("--op {}: expected no --depth, which is of attention", op_));
    }
    if (op_ != "delta" && !save_.empty()) throw usage_error(fmt::format("--op {}: expected no --save, which is of delta", op_));
    if (op_ == "delta") return delta(console);
    if (op_ == "attention") return attention(console);
    if (op_ == "pack") return pack(console);
    if (op_ == "grouped") return grouped(console);
    if (op_ == "gate-up") return gate_up(console);
    how_.shapes = parse_shapes(shapes_);
    how_.formats = weight_formats(true);
    how_.peer = peer_ == "cublas";
    const LinearBench bench = measured(console, how_, bench_linear);
    console.out(output_ == "md"    ? ops_markdown(bench, explain_)
                : output_ == "csv" ? ops_csv(bench)
                                   : ops_json(bench, explain_));
    return bench.complete ? kOk : kInterrupted;
  }

 private:
  std::vector<std::string> weight_formats(bool with_a8) const {
    std::vector<std::string> all = split(app().count("--formats") > 0 ? formats_ : "nvfp4,fp8,bf16");
    for (const std::string& format : all) {
      if (format == "nvfp4" || format == "fp8" || format == "bf16" || (with_a8 && format == "a8")) continue;
      throw usage_error(fmt::format("--formats: expected nvfp4, fp8{} separated by commas, found {}",
                                    with_a8 ? ", bf16 or a8" : " or bf16", in_quotes(formats_)));
    }
    return all;
  }

  // Fills in what all have.
  template <class Options, class Bench>
  Bench measured(Console& console, Options how, Bench (*measure)(const Device&, const Options&)) {
    const bool of_sequences = op_ == "delta" || op_ == "attention";
    if (app().count("--tokens") > 0 || !rows_.empty()) how.rows = parse_list("--tokens", rows_, 1, of_sequences ? kMostSequenceRows : limits::step_tokens);
    how.repetitions = how_.repetitions;
    how.on_progress = [&](std::string_view what, double part) {
      console.progress("bench ops", part, what);
      return !interrupted();
    };
    Bench bench;
    as_load_failure([&] { bench = measure(on_.empty() ? Device::best() : Device::parse(on_), how); },
                    "measuring");
    console.clear_progress();
    if (bench.rows.empty()) throw Interrupted{};
    return bench;
  }
  void expect_none_of_linear() const {
    for (const char* const of_both : {"--explain", "--tiles", "--peer"}) {
      if (app().count(of_both) == 0 || (op_ == "attention" && of_both == std::string_view("--peer"))) continue;
      throw usage_error(fmt::format("--op {}: expected no {}, which is of linear and grouped", op_, of_both));
    }
    expect_linear_alone();
  }
  void expect_linear_alone() const {
    for (const char* const of_linear : {"--together", "--products"}) {
      if (app().count(of_linear) == 0) continue;
      throw usage_error(fmt::format("--op {}: expected no {}, which is of linear", op_, of_linear));
    }
  }

  int gate_up(Console& console) {
    expect_none_of_linear();
    GateUpBenchOptions how;
    how.shapes = gate_up_shapes(shapes_);
    how.formats = weight_formats(false);
    const GateUpBench bench = measured(console, how, bench_gate_up);
    console.out(output_ == "md"    ? gate_up_markdown(bench)
                : output_ == "csv" ? gate_up_csv(bench)
                                   : gate_up_json(bench));
    return bench.complete ? kOk : kInterrupted;
  }

  int delta(Console& console) {
    expect_none_of_linear();
    if (app().count("--formats") > 0) throw usage_error("--op delta: expected no --formats, which is of linear");
    DeltaBenchOptions how;
    how.shapes = delta_shapes(shapes_);
    how.sequences = sequences();
    if (app().count("--tokens") == 0) rows_ = "1,512,2048,8192";
    int saved = 0;
    if (!save_.empty()) {
      how.on_result = [&saved, save = delta_saver(save_)](const auto&... result) { save(result...), ++saved; };
    }
    const DeltaBench bench = measured(console, how, bench_delta);
    console.out(output_ == "md" ? delta_markdown(bench) : output_ == "csv" ? delta_csv(bench) : delta_json(bench));
    if (!save_.empty() && saved == 0) {
      throw Failure{kFailed, fmt::format("--save: expected a prompt (T over 1) of rows of bf16, {} at most together, found none to save",
                                         kMostSavedDeltaRows)};
    }
    return bench.complete ? kOk : kInterrupted;
  }

  std::vector<std::int32_t> sequences() const {
    std::vector<std::int32_t> all;
    for (const std::int64_t n : parse_list("--sequences", sequences_, 1, 1024)) all.push_back(static_cast<std::int32_t>(n));
    return all;
  }

  int attention(Console& console) {
    expect_none_of_linear();
    if (app().count("--formats") > 0) throw usage_error("--op attention: expected no --formats, which is of linear");
    AttentionBenchOptions how;
    how.shapes = attention_shapes(shapes_);
    how.sequences = sequences();
    how.peer = peer_ == "cublas";
    const bool decode = app().count("--depth") > 0;
    if (decode) how.depths = parse_list("--depth", depths_, 1, 1 << 24);
    if (app().count("--tokens") == 0) rows_ = decode ? "" : "512,2048,8192,16384";
    const AttentionBench bench = measured(console, how, bench_attention);
    console.out(output_ == "md"    ? attention_markdown(bench)
                : output_ == "csv" ? attention_csv(bench)
                                   : attention_json(bench));
    return bench.complete ? kOk : kInterrupted;
  }

  int grouped(Console& console) {
    expect_linear_alone();
    GroupedBenchOptions how;
    how.shapes = grouped_shapes(app().count("--shapes") > 0 ? shapes_ : "qwen3_next");
    how.formats = weight_formats(false);
    how.peer = peer_ == "cublas";
    how.tiles = how_.tiles;
    const GroupedBench bench = measured(console, how, bench_grouped);
    console.out(output_ == "md"    ? grouped_markdown(bench, explain_)
                : output_ == "csv" ? grouped_csv(bench)
                                   : grouped_json(bench, explain_));
    return bench.complete ? kOk : kInterrupted;
  }

  int pack(Console& console) {
    expect_none_of_linear();
    PackBenchOptions how;
    how.shapes = pack_shapes(shapes_);
    how.formats = split(app().count("--formats") > 0 ? formats_ : "nvfp4_static,fp8_token");
    const PackBench bench = measured(console, how, bench_pack);
    console.out(output_ == "md" ? pack_markdown(bench) : output_ == "csv" ? pack_csv(bench) : pack_json(bench));
    return bench.complete ? kOk : kInterrupted;
  }

  LinearBenchOptions how_;
  OutputArgs messages_;
  std::string op_ = "linear", on_, shapes_ = "27b", formats_,
              rows_ = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096", sequences_ = "1", depths_, peer_ = "cublas", output_ = "md";
  std::string save_;
  bool explain_ = false;
};

}  // namespace

std::unique_ptr<Command> make_bench_ops(CLI::App& bench) {
  return std::make_unique<BenchOps>(bench);
}

}  // namespace nibble::tool
