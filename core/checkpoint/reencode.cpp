#include "core/checkpoint/reencode.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <system_error>
#include <thread>

#include "core/checkpoint/finite.h"
#include "core/numerics/fp8_reencode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kBlock = 16;  // columns of one block scale
constexpr std::int64_t kPieceRows = 64;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// fn(first, last) for pieces of the rows, on all the machine's threads where there is enough to do; fn writes what
// belongs to its rows only, or what it locks.
template <class Fn>
void over_rows(const Weight& w, const Fn& fn) {
  constexpr std::int64_t kWorthThreads = 1 << 22;
  const std::int64_t pieces = (w.rows + kPieceRows - 1) / kPieceRows;
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i; (i = next++) < pieces;) {
      fn(i * kPieceRows, std::min(w.rows, (i + 1) * kPieceRows));
    }
  };
  const std::int64_t wanted = w.rows * w.cols < kWorthThreads ? 1 : std::thread::hardware_concurrency();
  std::vector<std::jthread> others;
  for (std::int64_t t = 1; t < std::min(wanted, pieces); ++t) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // those that there are do it
    }
  }
  work();
}

std::uint8_t byte_at(Bytes bytes, std::int64_t i) { return std::to_integer<std::uint8_t>(bytes[at(i)]); }

// The matrix with its bytes, looked at.
Weight with_bytes(const Weight& nvfp4) {
  Weight w = nvfp4;
  const bool from_file = !w.materialize;
  if (!from_file && w.codes.empty()) w.materialize(w);
  if (w.codes.size() != at(w.rows * w.cols / 2) || w.block_scales.size() != at(w.rows * w.cols / kBlock)) {
    throw Error(ErrorCode::bad_file, "[a8] " + w.name + ": its codes and block scales do not fill [" +
                                         std::to_string(w.rows) + ", " + std::to_string(w.cols) + "]");
  }
  if (!from_file) return w;
  std::atomic<bool> bad{false};
  over_rows(w, [&](std::int64_t first, std::int64_t last) {
    if (!all_finite(w, first, last)) bad = true;
  });
  if (bad) check_finite(w);
  return w;
}

int scale_exponent(const Weight& w) {
  std::atomic<std::uint32_t> amax{0};
  over_rows(w, [&](std::int64_t first, std::int64_t last) {
    std::uint32_t most = 0;
    for (std::int64_t b = first * w.cols / kBlock; b < last * w.cols / kBlock; ++b) {
      std::uint8_t code = 0;
      for (std::int64_t i = 0; i < kBlock / 2; ++i) {
        const std::uint8_t two = byte_at(w.codes, b * kBlock / 2 + i);
        code = std::max({code, static_cast<std::uint8_t>(two & 7u), static_cast<std::uint8_t>(two >> 4 & 7u)});
      }
      const float v = num::abs(num::nvfp4_operand(code, byte_at(w.block_scales, b)));
      most = std::max(most, num::bit_cast<std::uint32_t>(v));  // in the order of magnitudes
    }
    for (std::uint32_t seen = amax; most > seen && !amax.compare_exchange_weak(seen, most);) {
    }
  });
  return num::fp8_scale_exponent(num::bit_cast<float>(amax.load()));
}

// For each block scale and code.
template <class T>
using PerPair = std::array<std::array<T, 16>, 256>;

PerPair<std::uint8_t> codes_at(float scale) {
  PerPair<std::uint8_t> table;
  for (unsigned s = 0; s < 256; ++s) {
    for (unsigned c = 0; c < 16; ++c) {
      table[s][c] = num::nvfp4_to_e4m3(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(s), scale);
    }
  }
  return table;
}

void encode(const Weight& w, float scale, std::byte* out) {
  const PerPair<std::uint8_t> table = codes_at(scale);
  over_rows(w, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first * w.cols / kBlock; b < last * w.cols / kBlock; ++b) {
      const auto& of = table[byte_at(w.block_scales, b)];
      for (std::int64_t i = b * kBlock / 2; i < (b + 1) * kBlock / 2; ++i) {
        const std::uint8_t two = byte_at(w.codes, i);
        out[2 * i] = std::byte{of[two & 15u]};
        out[2 * i + 1] = std::byte{of[two >> 4]};
      }
    }
  });
}

}  // namespace

Weight reencoded_to_fp8(const Weight& nvfp4) {
  Weight w;
  w.name = nvfp4.name;
  w.format = WeightFormat::fp8_e4m3;
  w.rows = nvfp4.rows;
  w.cols = nvfp4.cols;
  w.joined_rows = nvfp4.joined_rows;
  w.scale_layout = nvfp4.scale_layout == ScaleLayout::none ? ScaleLayout::tensor : nvfp4.scale_layout;
  w.scales = nvfp4.scale_layout == ScaleLayout::none ? std::vector<float>{1.0f} : nvfp4.scales;
  w.activation = {ActivationFormat::Kind::fp8_token, 0};
  w.codes_origin = nvfp4.codes_origin;
  w.scales_origin = nvfp4.scales_origin;
  if (nvfp4.materialize) w.making_bytes = nvfp4.bytes() + nvfp4.making_bytes;
  w.materialize = [nvfp4](Weight& to) {
    const Weight from = with_bytes(nvfp4);
    const float scale = num::fp8_scale(scale_exponent(from));
    auto made = std::make_shared<std::vector<std::byte>>(at(from.rows * from.cols));
    encode(from, scale, made->data());
    to.codes = {made->data(), made->size()};
    to.owner = std::move(made);
    for (float& s : to.scales) s = num::mul(s, scale);
  };
  return w;
}

double ReencodeLoss::relative_l2() const { return size2 > 0 ? std::sqrt(error2 / size2) : 0; }

ReencodeLoss reencode_loss(const Weight& nvfp4) {
  const Weight w = with_bytes(nvfp4);
  ReencodeLoss loss;
  loss.exponent = scale_exponent(w);
  const float scale = num::fp8_scale(loss.exponent);
  const PerPair<std::uint8_t> codes = codes_at(scale);
  PerPair<double> squares, errors;
  PerPair<bool> changes;
  for (std::size_t s = 0; s < 256; ++s) {
    for (std::size_t c = 0; c < 16; ++c) {
      const double v = num::nvfp4_operand(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(s));
      const double off = static_cast<double>(num::e4m3_to_float(codes[s][c])) * scale - v;
      squares[s][c] = v * v;
      errors[s][c] = off * off;
      changes[s][c] = off != 0;
    }
  }
  struct Sums {
    double error2 = 0, size2 = 0;
    std::int64_t inexact = 0;
  };
  std::vector<Sums> rows(at(w.rows));  // added up in order: the same figure on every machine
  over_rows(w, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t n = first; n < last; ++n) {
      Sums sum;
      for (std::int64_t b = n * w.cols / kBlock; b < (n + 1) * w.cols / kBlock; ++b) {
        const std::size_t s = byte_at(w.block_scales, b);
        for (std::int64_t i = b * kBlock / 2; i < (b + 1) * kBlock / 2; ++i) {
          const unsigned two = byte_at(w.codes, i);
          for (const unsigned c : {two & 15u, two >> 4}) {
            sum.error2 += errors[s][c];
            sum.size2 += squares[s][c];
            sum.inexact += changes[s][c];
          }
        }
      }
      const double alpha = w.scale_layout == ScaleLayout::row      ? w.scales[at(n)]
                           : w.scale_layout == ScaleLayout::tensor ? w.scales[0]
                                                                   : 1.0;
      rows[at(n)] = {sum.error2 * alpha * alpha, sum.size2 * alpha * alpha, sum.inexact};
    }
  });
  for (const Sums& r : rows) {
    loss.error2 += r.error2;
    loss.size2 += r.size2;
    loss.inexact += r.inexact;
  }
  return loss;
}

}  // namespace nibble
