// cmd_parity.cpp: `nibble parity`: do two devices agree to the bit, is one near float64?
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "nibble/parity.h"
#include "tools/args.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"
#include "tools/parity_digest.h"
#include "tools/parity_report.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

// {0}: the bounds.
constexpr const char* kFooter =
    R"(Both devices run the same prompt in steps of --chunk rows and then --decode steps of one row, each fed
with the tokens that A chooses. The output of every op of every step is compared, every row of the
prompt gives logits, and at the end the state is compared: keys, values, recurrent and convolution state.
Equal means equal bits (of the value as float32; bf16 is widened): zeros of different sign differ, all
NaN count as one value. The first difference is printed: op, kind, its index in its program, element,
both values and bit patterns. The run ends after that step unless --keep-going is given.

--against-oracle runs A alone and evaluates each op in float64 from the inputs that A had, so errors do
not add up from op to op. Printed is, for each kind of op, the largest relative L2 error of one op's
output. Bounds (and the largest error seen on the checkpoints of the tests):
  {0}
In f32 an op only rounds in float32, and in bf16 linear layers round their operands; elsewhere an output
is rounded to 16 bits (1.7e-3 for bf16 in this measure), and the float64 keys and values are not rounded as the cache is. --bound sets another. Codes of
quantised activations and sampled tokens must be equal.

--digest runs A alone and prints a hash of each kind of op's outputs, of the logits and of the state at the
end, as JSON that names the run. --check FILE repeats such a run on A and compares: what a card computed
once, cpu:mirror reproduces where there is no card.

Exit status: 0 equal (or within the bound), 5 different (or beyond it); others as in nibble --help.

Examples:
  nibble parity models/qwen --a cpu:mirror=sm90 --b cuda
  nibble parity models/qwen --a cpu --b cpu:kernels=portable --json
  nibble parity models/qwen --a cuda --against-oracle -f prompt.txt --decode 16
  nibble parity models/qwen --a cuda --digest > qwen-sm90.json
  nibble parity models/qwen --a cpu:mirror=sm90 --check qwen-sm90.json
  nibble parity models/mine --b-model models/mine-repacked --a cpu --b cpu)";

// Long enough for several chunks of the delta rule and more than one step at the default --chunk.
constexpr const char* kText =
    "A river does not keep its water; it keeps its course. Every spring the melting snow of the "
    "mountains, 2,469 metres above the sea, fills it again, and every autumn the valley below "
    "counts "
    "what was carried away: sand, branches, a wooden bridge, once the roof of a house. The people "
    "who "
    "live there have measured the height of the water at the same stone for three hundred years. "
    "Their book begins in 1703 with a single line, \"up to the second mark\", and today a small "
    "instrument writes a number every ten minutes. Put side by side, the old marks and the new "
    "numbers "
    "tell the same story: a flood is rare in one life and ordinary in ten. What changes is how "
    "fast "
    "it comes. Fields that drank the rain are now roads and roofs, which pass it on at once, and "
    "the "
    "wave that took a day from the upper bridge to the mill arrives before noon. So the town has "
    "learned to listen upstream. When the sensor at the gorge rises by twenty centimetres in an "
    "hour, "
    "the gates of the old canal open, the meadows by the church are left to the river, and the "
    "children, who are sent home early, watch from the hill how the water finds the way it had "
    "before anyone drew a map.";

std::string footer() {
  std::string bounds;
  for (const Float64Bound& b : float64_bounds()) {
    bounds += fmt::format("{}{} {:g} ({:g})", bounds.empty() ? "" : ", ", b.profile, b.bound, b.seen);
  }
  return fmt::format(fmt::runtime(kFooter), bounds);
}

class Parity final : public Command {
 public:
  explicit Parity(CLI::App& root)
      : Command(root, "parity", "do two devices agree to the bit, is one near float64?", footer()) {
    model_.add_path(app());
    device(a_, "--a",
           "first device: cpu, cpu:mirror=sm90, cuda:1 (default: the best that is there)");
    device(b_, "--b", "second device, compared with the first");
    app()
        .add_flag("--against-oracle", oracle_, "compare A with float64 instead of B")
        ->group("Device");
    app().add_flag("--digest", digest_, "print hashes of what A computes")->group("Device");
    not_empty(app().add_option("--check", check_, "compare A with hashes of an earlier run"))
        ->type_name("FILE")
        ->group("Device");
    bound_option_ = add_float(app(), "--bound", bound_, 0, 1e6,
                              "--against-oracle: largest relative L2 error; 0: the profile's");
    bound_option_->group("Device");
    not_empty(app().add_option("--b-model", b_model_, "B's checkpoint, where it is another one"))
        ->type_name("MODEL")
        ->group("Device");
    of_a_run_.push_back(
        add_choice(app(), "--activations", model_.activations, {"a16", "declared", "a8"},
                   "inputs of linear layers: not quantised, as the checkpoint declares, or FP8 (a8: lossy)")
            ->group("Device"));
    of_a_run_.push_back(model_.add_kv_cache_dtype(app()));
    text_.add(app(), "the prompt (default: a text about a river, about 250 words)");
    of_a_run_.push_back(not_empty(
        add_list(app(), "--tokens", tokens_, "the prompt as token ids; needs no tokenizer")->group("Text")));
    of_a_run_.push_back(add_int(app(), "--decode", how_.decode, 0, 1 << 24, "greedy steps after the prompt"));
    of_a_run_.push_back(
        add_int(app(), "--chunk", how_.chunk, 64, 1 << 20, "prompt rows of one step, a multiple of 64"));
    of_a_run_.push_back(app().add_flag("--keep-going", how_.keep_going, "count differences to the end"));
    app().add_flag("--json", json_, "one JSON object");
    model_.output.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(model_.output.verbosity());
    if ((digest_ || !check_.empty()) && (oracle_ || !b_.empty() || !b_model_.empty())) {
      throw usage_error(
          "--digest, --check: expected A alone, found --b, --b-model or --against-oracle");
    }
    if (digest_ && !check_.empty()) throw usage_error("expected --digest or --check, found both");
    if (!check_.empty()) {
      for (const CLI::Option* option : of_a_run_) {
        if (option->count() > 0) {
          throw usage_error(fmt::format("--check: the file says which run it is of; expected no {} beside it",
                                        option->get_name()));
        }
      }
      if (text_.text || !text_.file.empty()) {
        throw usage_error("--check: the file says which run it is of; expected no prompt beside it");
      }
    }
    if (oracle_ && how_.keep_going) throw usage_error("--keep-going: expected --b beside it, found --against-oracle");
    if (digest_ && how_.keep_going) throw usage_error("--keep-going: expected --b beside it, found --digest");
    if (oracle_ && (!b_.empty() || !b_model_.empty())) {
      throw usage_error("--against-oracle: expected no --b and no --b-model beside it, found one");
    }
    const bool alone = digest_ || !check_.empty();
    if (!oracle_ && !alone && b_.empty()) {
      throw usage_error(
          "expected --b DEVICE, --against-oracle, --digest or --check FILE, found none");
    }
    if (!oracle_ && bound_option_->count() > 0) {
      throw usage_error(
          "--bound: expected --against-oracle beside it, found none (bits are equal or not)");
    }
    if (how_.chunk % 64 != 0) {
      throw usage_error(fmt::format("--chunk: expected a multiple of 64, found {}", how_.chunk));
    }
    const auto folder = model_path(model_.path);
    const Device a = a_.empty() ? Device::best() : parse(a_);
    how_.activations = model_.load_options().activations;
    how_.kv_cache_dtype = model_.load_options().kv_cache_dtype;
    if (oracle_ && how_.kv_cache_dtype != KvCacheDtype::automatic && bound_option_->count() == 0) {
      throw usage_error("--against-oracle: expected --kv-cache-dtype auto, since float64's keys and values are not rounded "
                        "to fp8, or a --bound, found fp8");
    }
    how_.bound = static_cast<double>(bound_);
    if (!b_model_.empty()) how_.model_b = model_path(b_model_);
    Json expected;
    if (check_.empty()) {
      read_prompt(console, folder);
    } else {
      expected = read_digest(check_, how_);
    }
    // A step holds no more rows than the prompt has: larger ones would only cost memory.
    how_.chunk = std::min(how_.chunk, static_cast<int>((how_.prompt.size() + 63) / 64 * 64));
    how_.on_load = [&](const LoadProgress& p) {
      console.progress(p.stage,
                       p.total > 0 ? static_cast<double>(p.done) / static_cast<double>(p.total) : 0,
                       fmt::format("{} of {}", format_bytes(p.done), format_bytes(p.total)));
      return !interrupted();
    };
    how_.on_message = [&](std::string_view message) { console.detail(message); };
    how_.on_step = [&](std::int64_t done, std::int64_t steps) {
      console.progress("comparing", static_cast<double>(done) / static_cast<double>(steps),
                       fmt::format("step {} of {}", done, steps));
      return !interrupted();
    };
    std::optional<ParityReport> bits;
    std::optional<Float64Report> oracle;
    std::optional<ParityDigest> digest;
    as_load_failure([&] {
      try {
        if (alone) {
          digest = digest_device(folder, a, how_);
        } else if (oracle_) {
          oracle = compare_with_float64(folder, a, how_);
        } else {
          bits = compare_devices(folder, a, parse(b_), how_);
        }
      } catch (const Error& e) {
        if (e.code() == ErrorCode::context_full)
          throw Failure(kFailed, e.what());  // not the model's fault
        if (e.code() == ErrorCode::invalid_argument && !check_.empty())
          throw Failure(kFailed, fmt::format("{}: {}", check_, e.what()));  // what a file asks for, not the command line
        throw;
      }
    });
    console.clear_progress();
    if (interrupted()) throw Interrupted{};
    if (digest && digest_) {
      console.out(digest_json(*digest, how_).dump() + "\n");
      return kOk;
    }
    if (digest) {
      const auto lines = digest_differences(expected, digest_json(*digest, how_));
      if (json_) {
        Json::Array differences(lines.begin(), lines.end());
        console.out(Json(Json::Object{{"equal", lines.empty()},
                                      {"profile", digest->device.profile},
                                      {"ops", digest->work.ops},
                                      {"elements", digest->work.elements},
                                      {"differences", std::move(differences)}})
                        .dump(2) +
                    "\n");
        return lines.empty() ? kOk : kDiffers;
      }
      for (const std::string& line : lines) console.out("differs   " + line + "\n");
      if (lines.empty()) {
        console.out(fmt::format("equal     {} op outputs with {} elements, profile {}\n", digest->work.ops,
                                digest->work.elements, digest->device.profile));
      }
      return lines.empty() ? kOk : kDiffers;
    }
    const auto report = [&](const auto& r) {
      console.out(json_ ? parity_json(r).dump(2) + "\n" : parity_text(console, r));
    };
    if (oracle) {
      report(*oracle);
      return oracle->within() ? kOk : kDiffers;
    }
    report(*bits);
    return bits->equal() ? kOk : kDiffers;
  }

 private:
  void device(std::string& value, const char* flag, const char* help) {
    not_empty(app().add_option(flag, value, help))->type_name("DEVICE")->group("Device");
  }

  static Device parse(const std::string& text) {
    Device d;
    as_load_failure([&] { d = Device::parse(text); });
    return d;
  }

  void read_prompt(Console& console, const std::filesystem::path& folder) {
    const bool text = text_.text || !text_.file.empty();
    if (!tokens_.empty()) {
      if (text) throw usage_error("--tokens: expected ids or a text, found both");
      for (const std::int64_t id :
           parse_list("--tokens", tokens_, 0, (std::int64_t{1} << 31) - 1)) {
        how_.prompt.push_back(static_cast<std::int32_t>(id));
      }
      return;
    }
    const std::string prompt = text ? text_.read(console, /*strip_newline=*/true) : kText;
    as_load_failure([&] { how_.prompt = Tokenizer::load(folder).encode(prompt); });
    if (how_.prompt.empty())
      throw usage_error("expected a prompt of at least one token, found none");
  }

  ModelArgs model_;
  TextArgs text_;
  ParityOptions how_;
  CLI::Option* bound_option_ = nullptr;
  std::vector<const CLI::Option*> of_a_run_;  // what a digest's file says itself
  std::string a_, b_, b_model_, tokens_, check_;
  float bound_ = 0;
  bool oracle_ = false, digest_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_parity(CLI::App& root) {
  return std::make_unique<Parity>(root);
}

}  // namespace nibble::tool
