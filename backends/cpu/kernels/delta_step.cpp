// delta_step.cpp: the delta rule row by row, and records folded into S.
//   map   two panels (32 columns) of S at a time: 16 KiB for key_dim 128, read from memory once,
//         stored once with the accepted records in it; the second sweep of a row finds them in L1
//   cost  8 bytes, 6 flop an element of S -> bandwidth bound
#include "backends/cpu/kernels/sequence_table.h"
#include "backends/cpu/kernels/tile.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

// x = S[k, panel p] with all records taken; F: how many, or -1 for any number.
template <int F, int P>
struct Folder {
  const RecordView& r;
  int first;
  F32x16 u[P], decay;

  NIBBLE_INLINE Folder(const RecordView& records, int p0) : r(records), first(p0) {
    if constexpr (F == 1) {
      decay = set1(r.decay[0]);
      for (int p = 0; p < P; ++p) u[p] = load(r.u + (p0 + p) * kPanel);
    }
  }
  NIBBLE_INLINE F32x16 operator()(F32x16 x, int k, int p) const {
    if constexpr (F == 1) return fma(set1(r.key[k]), u[p], mul(decay, x));
    if constexpr (F < 0) {
      for (int i = 0; i < r.count; ++i) {
        const F32x16 ui = load(r.u + i * r.u_stride + (first + p) * kPanel);
        x = fma(set1(r.key[i * r.key_stride + k]), ui, mul(set1(r.decay[i * r.decay_stride]), x));
      }
    }
    return x;
  }
};

template <int F, int P>
void step_panels(const DeltaTask& t, int p0) {
  const std::int64_t panel = std::int64_t{t.key_dim} * kPanel;
  float* from = t.s + p0 * panel;  // the row reads S here ...
  for (int row = 0; row < t.rows; ++row) {
    const float* key = t.k + row * t.qkv_stride;
    const float* query = t.q + row * t.qkv_stride;
    const float* value = t.v + row * t.qkv_stride + p0 * kPanel;
    const float d = num::exp(t.g[row * t.g_stride]);
    const F32x16 decay = set1(d);
    F32x16 sum[P];
    for (int p = 0; p < P; ++p) sum[p] = zero();
    if (F != 0 && row == 0) {
      const Folder<F, P> folded(t.records, p0);
      for (int k = 0; k < t.key_dim; ++k) {
        const F32x16 kk = set1(key[k]);
        NIBBLE_UNROLL
        for (int p = 0; p < P; ++p) {
          float* at = from + p * panel + k * kPanel;
          const F32x16 x = folded(load(at), k, p);
          store(at, x);
          sum[p] = fma(mul(decay, x), kk, sum[p]);
        }
      }
    } else {
      for (int k = 0; k < t.key_dim; ++k) {
        const F32x16 kk = set1(key[k]);
        NIBBLE_UNROLL
        for (int p = 0; p < P; ++p) {
          sum[p] = fma(mul(decay, load(from + p * panel + k * kPanel)), kk, sum[p]);
        }
      }
    }
    const F32x16 beta = set1(t.beta[row * t.beta_stride]);
    float* record = t.new_u + row * t.records.u_stride + p0 * kPanel;
    F32x16 u[P], o[P];
    for (int p = 0; p < P; ++p) {
      u[p] = mul(beta, sub(load_part(value + p * kPanel, t.columns - (p0 + p) * kPanel), sum[p]));
      store(record + p * kPanel, u[p]);
      o[p] = zero();
    }
    const bool more = row + 1 < t.rows;  // ... and a next row of the step finds it in the workspace
    for (int k = 0; k < t.key_dim; ++k) {
      const F32x16 kk = set1(key[k]), qk = set1(query[k]);
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) {
        const std::int64_t at = p * panel + k * kPanel;
        const F32x16 x = fma(kk, u[p], mul(decay, load(from + at)));
        if (more) store(t.work + at, x);
        o[p] = fma(x, qk, o[p]);
      }
    }
    from = t.work;
    for (int p = 0; p < P; ++p) {
      store_part(t.y + row * t.y_stride + (p0 + p) * kPanel, o[p], t.columns - (p0 + p) * kPanel);
    }
  }
}

template <int F>
void step_all(const DeltaTask& t) {
  int p = 0;
  for (; p + 2 <= t.panels; p += 2) step_panels<F, 2>(t, p);
  for (; p < t.panels; ++p) step_panels<F, 1>(t, p);
}

}  // namespace

void fold(const FoldTask& t) {
  const std::int64_t panel = std::int64_t{t.key_dim} * kPanel;
  for (int p = 0; p < t.panels; ++p) {
    const Folder<-1, 1> folded(t.records, p);
    for (int k = 0; k < t.key_dim; ++k) {
      store(t.to + p * panel + k * kPanel, folded(load(t.from + p * panel + k * kPanel), k, 0));
    }
  }
}

void delta_step(const DeltaTask& t) {
  if (t.records.count == 0) {
    step_all<0>(t);
  } else if (t.records.count == 1) {
    step_all<1>(t);
  } else {
    step_all<-1>(t);
  }
  for (int row = 0; row < t.rows; ++row) {
    if (t.new_key) {
      __builtin_memcpy(t.new_key + row * t.records.key_stride, t.k + row * t.qkv_stride,
                       sizeof(float) * static_cast<std::size_t>(t.key_dim));
    }
    if (t.new_decay) t.new_decay[row * t.records.decay_stride] = num::exp(t.g[row * t.g_stride]);
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
