#include "core/checkpoint/finite.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/checkpoint/tensor_info.h"
#include "core/checkpoint/widen.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// Elements that are tested without a branch, so that the loop becomes vectors.
constexpr std::size_t kRun = 4096;

// Position of the first element for which `bad` holds, or `count`. T may lie unaligned.
template <class T, class Bad>
std::size_t find_bad(const std::byte* data, std::size_t count, Bad bad) {
  for (std::size_t begin = 0; begin < count; begin += kRun) {
    const std::size_t end = std::min(begin + kRun, count);
    const auto at = [&](std::size_t i) {
      T v;
      std::memcpy(&v, data + i * sizeof(T), sizeof(T));
      return v;
    };
    unsigned any = 0;
    for (std::size_t i = begin; i < end; ++i) any |= bad(at(i)) ? 1u : 0u;
    if (any == 0) continue;
    while (!bad(at(begin))) ++begin;
    return begin;
  }
  return count;
}

// Of the codes of rows [begin, end): the element counted from row 0, or -1.
std::int64_t bad_code(const Weight& w, std::int64_t begin, std::int64_t end) {
  const auto first = static_cast<std::size_t>(begin * w.cols);
  const auto count = static_cast<std::size_t>((end - begin) * w.cols);
  std::size_t found = count;
  switch (w.format) {
    case WeightFormat::f32:
      found = find_bad<std::uint32_t>(w.codes.data() + 4 * first, count, [](std::uint32_t v) {
        return (v & 0x7f800000u) == 0x7f800000u;
      });
      break;
    case WeightFormat::f16:
      found = find_bad<std::uint16_t>(w.codes.data() + 2 * first, count,
                                      [](std::uint16_t v) { return (v & 0x7c00u) == 0x7c00u; });
      break;
    case WeightFormat::bf16:
      found = find_bad<std::uint16_t>(w.codes.data() + 2 * first, count,
                                      [](std::uint16_t v) { return (v & 0x7f80u) == 0x7f80u; });
      break;
    case WeightFormat::fp8_e4m3:
      found = find_bad<std::uint8_t>(w.codes.data() + first, count,
                                     [](std::uint8_t v) { return (v & 0x7fu) == 0x7fu; });
      break;
    case WeightFormat::nvfp4:
      break;  // every code is a number
  }
  return found == count ? -1 : static_cast<std::int64_t>(first + found);
}

// The same of NVFP4's block scales, 16 columns each: 0x7f is NaN, above it are those with a sign.
std::int64_t bad_scale(const Weight& w, std::int64_t begin, std::int64_t end) {
  if (w.format != WeightFormat::nvfp4) return -1;
  const auto first = static_cast<std::size_t>(begin * (w.cols / 16));
  const auto count = static_cast<std::size_t>((end - begin) * (w.cols / 16));
  const std::size_t found = find_bad<std::uint8_t>(w.block_scales.data() + first, count,
                                                   [](std::uint8_t v) { return v >= 0x7f; });
  return found == count ? -1 : static_cast<std::int64_t>(first + found);
}

// Tensor or row scales of NVFP4 that profile sm90 could not multiply by 2^7 (core/numerics/matrix_order.h).
std::int64_t large_scale(const Weight& w) {
  if (w.format != WeightFormat::nvfp4) return -1;
  const auto found = std::find_if(w.scales.begin(), w.scales.end(), [](float v) { return std::fabs(v) >= 0x1p120f; });
  return found == w.scales.end() ? -1 : found - w.scales.begin();
}

std::string name_of(float v) {
  return std::isnan(v) ? "NaN" : v > 0 ? "inf" : "-inf";
}

std::string name_of_code(const Weight& w, std::int64_t at) {
  const auto i = static_cast<std::size_t>(at);
  switch (w.format) {
    case WeightFormat::f32:
      return name_of(load_le<float>(w.codes, 4 * i));
    case WeightFormat::f16:
      return name_of(widen_f16(load_le<std::uint16_t>(w.codes, 2 * i)));
    case WeightFormat::bf16:
      return name_of(widen_bf16(load_le<std::uint16_t>(w.codes, 2 * i)));
    default:
      return "NaN";
  }
}

[[noreturn]] void refuse(const Weight& w, const std::string& origin, const char* what,
                         const std::string& found, std::int64_t at, std::int64_t cols) {
  throw Error(ErrorCode::bad_file,
              "[weights] " + (origin.empty() ? "tensor " + show_name(w.name) : origin) +
                  ": expected " + what + ", found " + found + " at " +
                  shape_text({at / cols, at % cols}));
}

}  // namespace

bool all_finite(const Weight& w, std::int64_t begin, std::int64_t end) {
  return large_scale(w) < 0 && bad_scale(w, begin, end) < 0 && bad_code(w, begin, end) < 0;
}

void check_finite(const Weight& w) {
  if (const std::int64_t at = large_scale(w); at >= 0) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", static_cast<double>(w.scales[static_cast<std::size_t>(at)]));
    refuse(w, "", "tensor and row scales of NVFP4 below 2^120 (1.33e36)", text, at, 1);
  }
  if (const std::int64_t at = bad_scale(w, 0, w.rows); at >= 0) {
    const auto code = std::to_integer<unsigned>(w.block_scales[static_cast<std::size_t>(at)]);
    const bool nan = (code & 0x7fu) == 0x7fu;
    refuse(w, w.scales_origin, nan ? "finite values" : "scales without a sign",
           nan ? "NaN" : "a negative one", at, w.cols / 16);
  }
  if (const std::int64_t at = bad_code(w, 0, w.rows); at >= 0) {
    refuse(w, w.codes_origin, "finite values", name_of_code(w, at), at, w.cols);
  }
}

std::string first_not_finite(const std::vector<float>& values,
                             const std::vector<std::int64_t>& shape) {
  const auto bad = std::find_if(values.begin(), values.end(),
                                [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return "";
  std::vector<std::int64_t> place(shape.size());
  auto at = static_cast<std::int64_t>(bad - values.begin());
  for (std::size_t d = shape.size(); d-- > 0;) {
    place[d] = at % shape[d];
    at /= shape[d];
  }
  return name_of(*bad) + (place.empty() ? "" : " at " + shape_text(place));
}

}  // namespace nibble
