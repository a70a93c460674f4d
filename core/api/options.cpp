#include "nibble/options.h"

#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble {

const char* activations_name(Activations a) {
  switch (a) {
    case Activations::a16:
      return "a16";
    case Activations::declared:
      return "declared";
    case Activations::a8:
      return "a8";
  }
  return "?";
}

Activations activations_from_name(std::string_view name) {
  for (const Activations a : {Activations::a16, Activations::declared, Activations::a8}) {
    if (name == activations_name(a)) return a;
  }
  throw Error(ErrorCode::invalid_argument,
              "[load options] activations: expected a16, declared or a8, found " + in_quotes(std::string(name)));
}

const char* kv_cache_dtype_name(KvCacheDtype d) {
  switch (d) {
    case KvCacheDtype::automatic:
      return "auto";
    case KvCacheDtype::fp8:
      return "fp8";
  }
  return "?";
}

KvCacheDtype kv_cache_dtype_from_name(std::string_view name) {
  for (const KvCacheDtype d : {KvCacheDtype::automatic, KvCacheDtype::fp8}) {
    if (name == kv_cache_dtype_name(d)) return d;
  }
  throw Error(ErrorCode::invalid_argument,
              "[load options] kv_cache_dtype: expected auto or fp8, found " + in_quotes(std::string(name)));
}

}  // namespace nibble
