// delta_units_world.h: one value head for the delta rule's kernels on matrix units, on every instruction set, beside the
// plain text of their contract.
#pragma once

#include <limits>

#include "tests/cpu/delta_units_reference.h"
#include "tests/cpu/sequence_world.h"

namespace nibble::test {

inline const char* name_of(PrefillUnits units) { return units == PrefillUnits::sm70 ? "sm70" : "sm90"; }

// Rows as the profile's buffers hold them: q, k and v of bf16, or of f16 with one exponent for all three.
inline void round_rows(DeltaHead& h) {
  Row* const all[] = {&h.q, &h.k, &h.v};
  for (std::int64_t i = 0; i < h.rows; ++i) {
    std::uint32_t most = 0;
    const auto each = [&](auto f) {
      for (Row* x : all) {
        const std::int64_t width = x == &h.v ? h.value_dim : h.key_dim;
        for (std::int64_t c = 0; c < width; ++c) f((*x)[at(i * width + c)]);
      }
    };
    each([&](float x) { most = std::max(most, num::finite_magnitude(x)); });
    const int e = num::activation_exponent(most);
    const bool f16_rows = h.units == PrefillUnits::sm70;
    each([&](float& x) { x = f16_rows ? num::row_f16_to_float(num::activation_to_f16(x, e), e) : bf16(x); });
  }
}

// As a model has them: keys and queries of length one, q also * key_dim^-0.5, g = -softplus(normal) * gate.
inline DeltaHead like_a_model(std::int64_t key_dim, std::int64_t value_dim, std::int64_t rows, float gate,
                              std::uint64_t seed, PrefillUnits units = PrefillUnits::sm90) {
  DeltaHead h{key_dim, value_dim, rows, 0, {}, {}, {}, {}, {}, Row(at(key_dim * value_dim), 0.0f),
              units};
  Normal normal(seed, units == PrefillUnits::sm70 ? [](float x) { return f16(x); } : bf16);
  for (std::int64_t i = 0; i < rows; ++i) {
    append(h.q, normal.unit(key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim))));
    append(h.k, normal.unit(key_dim, 1.0f));
    append(h.v, normal.row(value_dim));
    h.g.push_back(-gate * num::softplus(normal()));
    h.beta.push_back(num::sigmoid(normal()));
  }
  return h;
}

struct Records {
  Row key, u, decay;  // [count, ..]
};
inline void take(const Records& r, DeltaHead& h) {
  for (std::size_t n = 0; n < r.decay.size(); ++n) {
    for (std::int64_t e = 0; e < h.key_dim; ++e) {
      for (std::int64_t v = 0; v < h.value_dim; ++v) {
        float& s = h.s[at(e * h.value_dim + v)];
        s = num::fma(r.key[n * at(h.key_dim) + at(e)], r.u[n * at(h.value_dim) + at(v)], num::mul(r.decay[n], s));
      }
    }
  }
}

// The kernel on panels [begin, end) of h, whose state it leaves behind; y [rows, value_dim].
inline void run_panels(const cpu::SequenceKernels& kernels, DeltaHead& h, const Records& records, std::int64_t begin,
                std::int64_t end, Row& y) {
  const std::int64_t dim = h.key_dim, width = h.value_dim, count = static_cast<std::int64_t>(records.decay.size());
  const std::int64_t first = begin * 16, columns = std::min(width, end * 16) - first, padded = (end - begin) * 16;
  Matrix q(h.rows, dim, 0), out(h.rows, columns, 7);
  Floats s(dim * padded), u(std::max<std::int64_t>(1, count) * padded), work(cpu::delta_units_work_floats(dim));
  const auto place = [&](std::int64_t e, std::int64_t v) { return (v / 16 * dim + e) * 16 + v % 16; };
  for (std::int64_t v = 0; v < padded; ++v) {
    for (std::int64_t e = 0; e < dim; ++e) s.data()[place(e, v)] = v < columns ? h.s[at(e * width + first + v)] : 0.0f;
    for (std::int64_t n = 0; n < count; ++n) {
      u.data()[n * padded + v] = v < columns ? records.u[at(n * width + first + v)] : 0.0f;
    }
  }
  // q, k and v in one row, as DeltaConv leaves them
  const std::int64_t stride = 2 * dim + width + 5;
  Floats qkv(h.rows * stride);
  for (std::int64_t i = 0; i < h.rows; ++i) {
    std::copy_n(h.q.begin() + i * dim, dim, qkv.data() + i * stride);
    std::copy_n(h.k.begin() + i * dim, dim, qkv.data() + i * stride + dim);
    std::copy_n(h.v.begin() + i * width, width, qkv.data() + i * stride + 2 * dim);
  }
  cpu::DeltaTask t{};
  t.s = s.data();
  t.panels = static_cast<int>(end - begin);
  t.key_dim = static_cast<int>(dim);
  t.columns = static_cast<int>(columns);
  t.records = {records.key.data(), u.data(), records.decay.data(), dim, padded, 1, static_cast<int>(count)};
  t.rows = static_cast<int>(h.rows);
  t.position = h.position;
  t.q = qkv.data();
  t.k = t.q + dim;
  t.v = t.k + dim + first;
  t.g = h.g.data();
  t.beta = h.beta.data();
  t.qkv_stride = stride;
  t.g_stride = t.beta_stride = 1;
  t.y = out.data.data();
  t.y_stride = out.stride;
  t.work = work.data();
  (h.units == PrefillUnits::sm70 ? kernels.delta_units_sm70 : kernels.delta_units_sm90)(t);
  out.expect_gaps();
  for (std::int64_t v = 0; v < padded; ++v) {
    for (std::int64_t e = 0; e < dim; ++e) {
      const float x = s.data()[place(e, v)];
      if (v < columns) h.s[at(e * width + first + v)] = x;
      else ASSERT_TRUE(std::bit_cast<std::uint32_t>(x) == 0 || std::isnan(x)) << "what pads a panel of S: " << x;
    }
  }
  for (std::int64_t i = 0; i < h.rows; ++i) {
    for (std::int64_t v = 0; v < columns; ++v) y[at(i * width + first + v)] = out.data.data()[i * out.stride + v];
  }
}
inline Row run(const std::string& isa, DeltaHead& h, const Records& records = {}) {
  Row y(at(h.rows * h.value_dim));
  run_panels(cpu::sequence_kernels(isa), h, records, 0, (h.value_dim + 15) / 16, y);
  return y;
}

// NaN has one pattern where y and S come from matrix instructions.
inline void expect_contract(const DeltaHead& h, const Records& records, const std::string& where) {
  DeltaHead plain = h;
  take(records, plain);
  Row want = reference_units(plain);
  const auto one_nan = [&](Row& values) {  // sm70's come from fma: any pattern
    if (h.units != PrefillUnits::sm70) return;
    for (float& x : values) x = std::isnan(x) ? std::numeric_limits<float>::quiet_NaN() : x;
  };
  one_nan(want);
  one_nan(plain.s);
  for (const std::string& isa : isas_here()) {
    DeltaHead on = h;
    Row y = run(isa, on, records);
    one_nan(y);
    one_nan(on.s);
    expect_bytes(y, want, isa + ", " + where + ", y");
    expect_bytes(on.s, plain.s, isa + ", " + where + ", S");
  }
}

inline Records some_records(const DeltaHead& h, std::int64_t count) {
  Normal normal(77);
  Records r;
  for (std::int64_t n = 0; n < count; ++n) {
    append(r.key, normal.unit(h.key_dim, 1.0f));
    append(r.u, normal.row(h.value_dim));
    r.decay.push_back(0.75f + 0.0625f * static_cast<float>(n));
  }
  return r;
}

}  // namespace nibble::test
