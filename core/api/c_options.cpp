// c_options.cpp: option structs that begin with their size, there and back.
#include "core/api/c_support.h"
#include "core/base/quote.h"

namespace nibble::c_api {
namespace {

// Above this a struct_size is not a size but memory that nobody initialised.
constexpr std::size_t kLargestStruct = 4096;

nibble_load_options defaults(const nibble_load_options*) {
  const LoadOptions d;
  nibble_load_options o{};
  static_assert(static_cast<int>(Activations::a16) == NIBBLE_ACTIVATIONS_A16 &&
                static_cast<int>(Activations::declared) == NIBBLE_ACTIVATIONS_DECLARED &&
                static_cast<int>(Activations::a8) == NIBBLE_ACTIVATIONS_A8);
  o.activations = static_cast<std::int32_t>(d.activations);
  o.kv_tokens = d.kv_tokens;
  o.max_sequences = d.max_sequences;
  o.step_tokens = d.step_tokens;
  o.max_drafts = d.max_drafts;
  o.run_ahead = -1;
  static_assert(static_cast<int>(KvCacheDtype::automatic) == NIBBLE_KV_CACHE_DTYPE_AUTO &&
                static_cast<int>(KvCacheDtype::fp8) == NIBBLE_KV_CACHE_DTYPE_FP8);
  o.kv_cache_dtype = static_cast<std::int32_t>(d.kv_cache_dtype);
  return o;
}

nibble_synthetic_options defaults(const nibble_synthetic_options*) {
  const SyntheticOptions d;
  nibble_synthetic_options o{};
  o.shape = "qwen3_5-27b";
  o.mix = "nvfp4";
  o.seed = d.seed;
  o.layers = d.layers;
  return o;
}

nibble_sampling defaults(const nibble_sampling*) {
  const Sampling d;
  nibble_sampling o{};
  o.temperature = d.temperature;
  o.top_p = d.top_p;
  o.min_p = d.min_p;
  o.repetition_penalty = d.repetition_penalty;
  o.seed = d.seed;
  o.top_k = d.top_k;
  o.max_new_tokens = d.max_new_tokens;
  return o;
}

// The caller's struct may be an older, shorter one or a newer, longer one.
template <class T>
void init(T* out, std::size_t size) {
  if (!out || size < sizeof(std::size_t) || size > kLargestStruct) return;
  T o = defaults(out);
  o.struct_size = size;
  std::memset(static_cast<void*>(out), 0, size);
  std::memcpy(static_cast<void*>(out), &o, std::min(size, sizeof(T)));
}

template <class T>
T read_sized(const T* given, const char* who, std::size_t first_version, const char* init_name) {
  T o = defaults(given);
  o.struct_size = sizeof(T);
  if (!given) return o;
  const std::size_t size = given->struct_size;
  if (size < first_version || size > kLargestStruct) {
    throw Error(ErrorCode::invalid_argument,
                "[" + std::string(who) + "] options.struct_size: expected " +
                    std::to_string(first_version) + " to " + std::to_string(kLargestStruct) +
                    ", found " + std::to_string(size) + "; call " +
                    init_name + "() first");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      throw Error(ErrorCode::unsupported, "[" + std::string(who) +
                                              "] the options set a field that this version (" +
                                              version() + ") does not have");
    }
  }
  std::memcpy(static_cast<void*>(&o), given, std::min(size, sizeof(T)));
  if constexpr (requires { o.reserved; }) {
    if (o.reserved != 0) {
      throw Error(ErrorCode::invalid_argument, "[" + std::string(who) +
                                                   "] options.reserved: expected 0, found " +
                                                   std::to_string(o.reserved));
    }
  }
  return o;
}

}  // namespace

// The sizes that version 0.1 had; they stay when the structs grow.
nibble_load_options read(const nibble_load_options* given, const char* who) {
  return read_sized(given, who, offsetof(nibble_load_options, user) + sizeof(void*),
                    "nibble_load_options_init");
}

nibble_synthetic_options read(const nibble_synthetic_options* given, const char* who) {
  return read_sized(given, who, offsetof(nibble_synthetic_options, reserved) + sizeof(int32_t),
                    "nibble_synthetic_options_init");
}

nibble_sampling read(const nibble_sampling* given, const char* who) {
  return read_sized(given, who, offsetof(nibble_sampling, reserved) + sizeof(int32_t),
                    "nibble_sampling_init");
}

Device device_of(const nibble_load_options& o) {
  Device device = Device::best();
  if (o.backend) device = Device::parse(o.backend);
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "[load options] " + what);
  };
  if (o.kernels) {
    const std::string kernels = o.kernels;
    if (kernels.empty()) refuse("kernels: expected a name, or NULL for the best there are, found \"\"");
    if (!device.kernels.empty() && device.kernels != kernels) {
      refuse("kernels: expected what backend says, " + in_quotes(device.kernels) + ", found " + in_quotes(kernels));
    }
    device.kernels = kernels;
  }
  if (o.threads != 0) {
    if (device.threads != 0 && device.threads != o.threads) {
      refuse("threads: expected what backend says, " + std::to_string(device.threads) + ", found " +
             std::to_string(o.threads));
    }
    device.threads = o.threads;
  }
  return device;
}

LoadOptions load_options_of(const nibble_load_options& o, const char* who) {
  LoadOptions how;
  switch (o.activations) {
    case NIBBLE_ACTIVATIONS_A16:
      how.activations = Activations::a16;
      break;
    case NIBBLE_ACTIVATIONS_DECLARED:
      how.activations = Activations::declared;
      break;
    case NIBBLE_ACTIVATIONS_A8:
      how.activations = Activations::a8;
      break;
    default:
      throw Error(ErrorCode::invalid_argument,
                  "[" + std::string(who) + "] options.activations: expected 0, 1 or 2, found " +
                      std::to_string(o.activations));
  }
  how.kv_tokens = o.kv_tokens;
  how.max_sequences = o.max_sequences;
  how.step_tokens = o.step_tokens;
  how.max_drafts = o.max_drafts;
  if (o.run_ahead < -1 || o.run_ahead > 1) {
    throw Error(ErrorCode::invalid_argument,
                "[" + std::string(who) + "] options.run_ahead: expected -1, 0 or 1, found " + std::to_string(o.run_ahead));
  }
  if (o.reserved_2 != 0) {
    throw Error(ErrorCode::invalid_argument,
                "[" + std::string(who) + "] options.reserved_2: expected 0, found " + std::to_string(o.reserved_2));
  }
  if (o.run_ahead >= 0) how.run_ahead = o.run_ahead == 1;
  if (o.kv_cache_dtype != NIBBLE_KV_CACHE_DTYPE_AUTO && o.kv_cache_dtype != NIBBLE_KV_CACHE_DTYPE_FP8) {
    throw Error(ErrorCode::invalid_argument, "[" + std::string(who) +
                                                 "] options.kv_cache_dtype: expected 0 (auto) or 1 (fp8), found " +
                                                 std::to_string(o.kv_cache_dtype));
  }
  how.kv_cache_dtype = static_cast<KvCacheDtype>(o.kv_cache_dtype);
  void* const user = o.user;
  if (o.on_progress) {
    how.on_progress = [call = o.on_progress, user](const LoadProgress& p) {
      return call(user, std::string(p.stage).c_str(), p.done, p.total) != 0;
    };
  }
  if (o.on_message) {
    how.on_message = [call = o.on_message, user](std::string_view text) {
      call(user, std::string(text).c_str());
    };
  }
  return how;
}

SyntheticOptions synthetic_options_of(const nibble_synthetic_options& o) {
  SyntheticOptions what;
  if (o.shape) what.shape = o.shape;
  if (o.mix) what.mix = o.mix;
  what.seed = o.seed;
  what.layers = o.layers;
  return what;
}

Sampling sampling_of(const nibble_sampling& o, const char* who) {
  Sampling how;
  how.temperature = o.temperature;
  how.top_k = o.top_k;
  how.top_p = o.top_p;
  how.min_p = o.min_p;
  how.repetition_penalty = o.repetition_penalty;
  how.seed = o.seed;
  how.max_new_tokens = o.max_new_tokens;
  for (const char* text : array(o.stop, o.stop_count, who, "sampling.stop")) {
    how.stop.emplace_back(&need(text, who, "a text of sampling.stop"));
  }
  const auto ids = array(o.stop_tokens, o.stop_token_count, who, "sampling.stop_tokens");
  how.stop_tokens.assign(ids.begin(), ids.end());
  if (o.ignore_model_stop_tokens != 0 && o.ignore_model_stop_tokens != 1) {
    throw Error(ErrorCode::invalid_argument,
                "[" + std::string(who) + "] sampling.ignore_model_stop_tokens: expected 0 or 1, found " +
                    std::to_string(o.ignore_model_stop_tokens));
  }
  how.ignore_model_stop_tokens = o.ignore_model_stop_tokens == 1;
  return how;
}

}  // namespace nibble::c_api

extern "C" {

void nibble_load_options_init(nibble_load_options* options, size_t struct_size) {
  nibble::c_api::init(options, struct_size);
}

void nibble_synthetic_options_init(nibble_synthetic_options* options, size_t struct_size) {
  nibble::c_api::init(options, struct_size);
}

void nibble_sampling_init(nibble_sampling* sampling, size_t struct_size) {
  nibble::c_api::init(sampling, struct_size);
}

}  // extern "C"
