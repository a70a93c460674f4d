// delta_pass.cu: the state of a sequence through its chunks (delta_units.cuh)
//   map     block = 64 columns v of a value head of a range: a warpgroup, and a warp that brings stages. All products are
//           transposed, so that sums are the next product's register operand: lane 4 g + p of warp w has, of S^T, P^T,
//           Q^T, R^T, U^T and o^T, rows v = 16 w + g and + 8, columns 8 n + 2 p and + 1 (keys' x, or tokens)
//   stages  of a chunk: keys, queries, values and the record of delta_prepare; three
//   S       float32 in registers from the first chunk to the last
//   order   o of a chunk is stored while P and Q of the next are made
//   rows    beyond the range hold anything: R is zero there, keys are made zero before S takes them, o is not stored
//   cost    2 * 64 * (4 * key_dim + 3 * 64) * value_dim a chunk and head, bf16 but for a sixth in tf32 -> latency of three
//           products that need one another
//   needs   sm_90a
#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/ops/delta_units.cuh"

namespace nibble::cuda {
namespace {

constexpr int kColumns = 64, kConsumers = 128, kThreads = kConsumers + 64;
constexpr int kValueBytes = kDeltaChunk * kColumns * 2, kStages = 3;
constexpr int kOutputRow = 32, kStagedOutput = 4 * kDeltaChunk * kOutputRow;  // a warp's 16 columns

template <int KeyDim>
struct Stage {
  using Tile = KeyTile<KeyDim>;
  static constexpr int kRecordAt = 0, kRecordRoom = (kRecordBytes + 1023) / 1024 * 1024;
  static constexpr int kKeysAt = kRecordRoom, kQueriesAt = kKeysAt + Tile::kBytes, kValuesAt = kQueriesAt + Tile::kBytes;
  static constexpr int kBytes = kValuesAt + kValueBytes;
  static constexpr int kFilled = kRecordBytes + 2 * Tile::kBytes + kValueBytes;
  static constexpr int kSharedBytes = 1024 + kStages * kBytes + kStagedOutput + 2 * (kStages + 1) * 8;
  static_assert(kBytes % 1024 == 0 && kSharedBytes <= 227 * 1024);
};

struct Ring {
  std::uint32_t barriers;
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ Barrier full() const { return {barriers + static_cast<std::uint32_t>(stage) * 8}; }
  __device__ __forceinline__ Barrier empty() const { return {barriers + static_cast<std::uint32_t>(kStages + stage) * 8}; }
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory"); }
__device__ __forceinline__ float2 pair_at(const float* at) { return *reinterpret_cast<const float2*>(at); }

// Columns 16 s .. 16 s + 15 of sums as a fragment.
template <int N>
__device__ __forceinline__ void fragment_of(const float (&v)[N], int s, std::uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = bf16_pair(v[8 * s + 2 * i], v[8 * s + 2 * i + 1]);
}

template <int KeyDim>
struct Consumer {
  using Tile = KeyTile<KeyDim>;
  using S = Stage<KeyDim>;
  const DeltaUnitsParams& p;
  const RangeView& r;
  int head, first;  // its first column
  std::byte* memory;
  std::uint32_t start;  // of the stages; where `memory` is
  int warp, lane;
  float s[KeyDim / 2], past[32], answer[32];   // S, P, then Q and o
  std::uint32_t of_s[Tile::kSteps][4], plain[4][4], decayed[4][4], output[4][4];  // fragments of S, U and o

  // f(element, x, v) of the lane's part of S.
  template <class F>
  __device__ __forceinline__ void each_of_s(F f) {
#pragma unroll
    for (int n = 0; n < KeyDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) f(s[4 * n + e], 8 * n + lane % 4 * 2 + e % 2, first + warp * 16 + lane / 4 + e / 2 * 8);
    }
  }
  __device__ __forceinline__ void load_state() {
    const DeltaShape& d = p.state.shape;
    float* const from = state_of(p.state, r.slot, head);
    if (r.keep > 0) {
      const RecordsView old = records_of(p.state, r.slot, r.half, head);
      for (int i = static_cast<int>(threadIdx.x); i < KeyDim * kColumns; i += kConsumers) {
        const int x = i / kColumns, v = first + i % kColumns;
        float* const at = from + std::int64_t{x} * d.value_dim + v;
        if (v < d.value_dim) *at = fold(old, r.keep, x, v, *at);
      }
      consumers_meet();
    }
    each_of_s([&](float& to, int x, int v) { to = v < d.value_dim ? from[std::int64_t{x} * d.value_dim + v] : 0.0f; });
  }
  __device__ __forceinline__ void store_state() {
    const DeltaShape& d = p.state.shape;
    float* const to = state_of(p.state, r.slot, head);
    each_of_s([&](float& from, int x, int v) {
      if (v < d.value_dim) to[std::int64_t{x} * d.value_dim + v] = from;
    });
  }

  // Keys and values of rows that are not the range's.
  __device__ __forceinline__ void clear_rows(std::uint32_t stage, int rows) {
    constexpr int kEights = KeyDim / 8, kValueEights = kColumns / 8, kAll = kEights + kValueEights;
    std::byte* const at = memory + (stage - start);
    for (int i = rows * kAll + static_cast<int>(threadIdx.x); i < kDeltaChunk * kAll; i += kConsumers) {
      const int row = i / kAll, eight = i % kAll;
      std::byte* const to = eight < kEights ? at + S::kKeysAt + Tile::at(row, eight)
                                            : at + S::kValuesAt + row * 128 + ((eight - kEights) ^ (row & 7)) * 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    fence_shared_writes();
    consumers_meet();
  }

  __device__ __forceinline__ void fragments_of_s() {
#pragma unroll
    for (int n = 0; n < Tile::kSteps; ++n) {
      fragment_of(s, n, of_s[n]);
      settle(of_s[n]);
    }
  }
  // Begins the products with S of a chunk, P then Q.
  __device__ __forceinline__ void begin(std::uint32_t stage) {
    zero(past);
    zero(answer);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < Tile::kSteps; ++n) wgmma_bf16<64>(past, of_s[n], Tile::step(stage + S::kKeysAt, n));
    wgmma_commit();
#pragma unroll
    for (int n = 0; n < Tile::kSteps; ++n) wgmma_bf16<64>(answer, of_s[n], Tile::step(stage + S::kQueriesAt, n));
    wgmma_commit();
  }
  // From P and Q to U; nothing is on its way then.
  __device__ __forceinline__ void make_u(std::uint32_t stage) {
    const std::uint32_t values = stage + S::kValuesAt;
    const float* const grown = reinterpret_cast<const float*>(memory + (stage - start) + kDecaysAt);
    const float* const rest = grown + kDeltaChunk;
    uint4 v[4];  // of tokens 16 m ..: eight columns, the next eight, then the same of eight tokens on
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = m * 16 + lane / 16 * 8 + lane % 8, eight = warp * 2 + lane / 8 % 2;
      v[m] = load_transposed(values + static_cast<std::uint32_t>(token * 128 + (eight ^ (token & 7)) * 16));
    }
    wgmma_wait<1>();
    settle(past);
    float u[32];
    std::uint32_t residual[8][4];  // R as fragments
    zero(u);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // the second of R is made while the first is multiplied
#pragma unroll
      for (int m = 4 * half; m < 4 * half + 4; ++m) {
        const std::uint32_t low = m % 2 == 0 ? v[m / 2].x : v[m / 2].z, high = m % 2 == 0 ? v[m / 2].y : v[m / 2].w;
        const float2 decay = pair_at(grown + 8 * m + lane % 4 * 2);
        residual[m][0] = tf32_bits(num::fma(-decay.x, past[4 * m], low_of(low)));
        residual[m][2] = tf32_bits(num::fma(-decay.y, past[4 * m + 1], high_of(low)));
        residual[m][1] = tf32_bits(num::fma(-decay.x, past[4 * m + 2], low_of(high)));
        residual[m][3] = tf32_bits(num::fma(-decay.y, past[4 * m + 3], high_of(high)));
        settle(residual[m]);
      }
      wgmma_fence();
#pragma unroll
      for (int m = 4 * half; m < 4 * half + 4; ++m) {
        wgmma_tf32(u, residual[m], tile_of<128>(stage + static_cast<std::uint32_t>(half * kHalfOfA + m % 4 * 32)));
      }
      wgmma_commit();
    }
    const float last = grown[kDeltaChunk - 1];
#pragma unroll
    for (int i = 0; i < KeyDim / 2; ++i) s[i] = num::mul(last, s[i]);
    wgmma_wait<2>();
    settle(answer);
#pragma unroll
    for (int n = 0; n < Tile::kSteps; ++n) settle(of_s[n]);  // not used for anything else before
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float2 decay = pair_at(grown + 8 * m + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) answer[4 * m + e] = num::mul(e % 2 == 0 ? decay.x : decay.y, answer[4 * m + e]);
    }
    settle(s);
    settle(answer);
    wgmma_wait<0>();
    settle(u);
#pragma unroll
    for (int m = 0; m < 8; ++m) settle(residual[m]);
#pragma unroll
    for (int n = 0; n < 4; ++n) fragment_of(u, n, plain[n]);
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float2 decay = pair_at(rest + 8 * m + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) u[4 * m + e] = num::mul(e % 2 == 0 ? decay.x : decay.y, u[4 * m + e]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      fragment_of(u, n, decayed[n]);
      settle(decayed[n]);
      settle(plain[n]);
    }
  }
  // S with the chunk in it, its fragments and o.
  __device__ __forceinline__ void take_u(std::uint32_t stage) {
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 4; ++n) wgmma_bf16_across<KeyDim>(s, decayed[n], Tile::rows_step(stage + S::kKeysAt, n));
    wgmma_commit();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      wgmma_bf16<64>(answer, plain[n], tile_of<128>(stage + static_cast<std::uint32_t>(kABytes + n * 32)));
    }
    wgmma_commit();
    wgmma_wait<1>();
    settle(s);
    fragments_of_s();
    wgmma_wait<0>();
    settle(answer);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      fragment_of(answer, n, output[n]);  // now: ptxas waits where sums are read while others are made
      settle(output[n]);
      settle(plain[n]);
      settle(decayed[n]);
    }
  }
  __device__ __forceinline__ static void zero(float (&v)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = 0.0f;
    settle(v);
  }

  // A warp's 16 columns of the chunk's rows, through its own part of shared memory.
  __device__ __forceinline__ void stage_output(std::byte* staged, Barrier full) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = m * 16 + lane / 16 * 8 + lane % 8, eight = lane / 8 % 2;
      store_transposed(shared_address(staged) + static_cast<std::uint32_t>(token * kOutputRow + eight * 16),
                       make_uint4(output[m][0], output[m][1], output[m][2], output[m][3]));
    }
    full.arrive();
  }
};

// A warp's work: o of each chunk, from where the consumers left it. What they leave first is nothing.
__device__ __forceinline__ void store_outputs(const DeltaUnitsParams& p, const RangeView& r, int chunks, int head, int first,
                                              const std::byte* staged, Barrier full, Barrier empty, int lane) {
  const int column = first + lane % 8 * 8;
  const std::byte* const from = staged + lane % 8 / 2 * (kStagedOutput / 4) + lane % 2 * 16;
#pragma unroll 1
  for (int turn = 0; turn <= chunks; ++turn) {
    const ChunkRows rows = turn == 0 ? ChunkRows{0, 0} : chunk_of(r, turn - 1);
    const int here = column < p.state.shape.value_dim ? rows.rows : 0;
    Bf16* y = p.y.row(r.first_row + rows.first + lane / 8) + std::int64_t{head} * p.state.shape.value_dim + column;
    full.wait(static_cast<std::uint32_t>(turn) & 1);
#pragma unroll 4
    for (int row = lane / 8; row < kDeltaChunk; row += 4, y += 4 * p.y.stride) {
      const uint4 eight = *reinterpret_cast<const uint4*>(from + row * kOutputRow);
      if (row < here) *reinterpret_cast<uint4*>(y) = eight;
    }
    empty.arrive();
  }
}

template <int KeyDim>
__global__ void __launch_bounds__(kThreads, 1)
    pass(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap values, const DeltaUnitsParams p) {
  using Tile = KeyTile<KeyDim>;
  using S = Stage<KeyDim>;
  extern __shared__ std::byte memory[];
  const int index = static_cast<int>(blockIdx.z);
  const RangeView* const range = section_range(*p.steps, p.section, index);
  if (range == nullptr) return;
  const RangeView r = *range;
  const DeltaShape& d = p.state.shape;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t start = (shared_address(memory) + 1023) / 1024 * 1024;
  std::byte* const base = memory + (start - shared_address(memory));
  Ring ring{start + static_cast<std::uint32_t>(kStages * S::kBytes + kStagedOutput)};
  std::byte* const staged = base + kStages * S::kBytes;
  const Barrier staged_full{ring.barriers + 2 * kStages * 8}, staged_empty{ring.barriers + 2 * kStages * 8 + 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      Barrier{ring.barriers + static_cast<std::uint32_t>(i) * 8}.init(1);
      Barrier{ring.barriers + static_cast<std::uint32_t>(kStages + i) * 8}.init(kConsumers);
    }
    staged_full.init(kConsumers);
    staged_empty.init(32);
    fence_barriers();
  }
  __syncthreads();
  const int chunks = chunks_of(r);
  if (warp > kConsumers / 32) {
    store_outputs(p, r, chunks, head, first, staged, staged_full, staged_empty, lane);
    return;
  }
  if (warp == kConsumers / 32) {
    if (lane != 0) return;
    const std::int64_t record = first_record(r, index);
    wait_for_launches_before();  // records; all else was there before delta_prepare began
    const int key = static_cast<int>(d.key_channels()) + key_head_of(d, head) * d.key_dim;
    const int query = key_head_of(d, head) * d.key_dim;
    const int value = 2 * static_cast<int>(d.key_channels()) + head * d.value_dim + first;
    for (int c = 0; c < chunks; ++c, ring.next()) {
      const std::uint32_t stage = start + static_cast<std::uint32_t>(ring.stage * S::kBytes);
      const int row = r.first_row + chunk_of(r, c).first;
      ring.empty().wait(ring.parity ^ 1);
      const Barrier full = ring.full();
      full.arrive_expecting(S::kFilled);
      Tile::copy(stage + S::kKeysAt, &map, key, row, full);
      copy_box(stage + S::kValuesAt, &values, value, row, full);
      copy_bytes(stage + S::kRecordAt, p.record(record + c, head), kRecordBytes, full);
      Tile::copy(stage + S::kQueriesAt, &map, query, row, full);
    }
    return;
  }
  Consumer<KeyDim> consumer{p, r, head, first, base, start, warp, lane, {}, {}, {}, {}, {}, {}, {}};
  consumer.load_state();
  consumer.fragments_of_s();
  std::byte* const own = staged + warp * (kStagedOutput / 4);
  // In a turn: the chunk's P and Q, and meanwhile o of the one before goes where the storing warp finds it.
#pragma unroll 1
  for (int c = 0; c < chunks; ++c, ring.next()) {
    const ChunkRows rows = chunk_of(r, c);
    const std::uint32_t stage = start + static_cast<std::uint32_t>(ring.stage * S::kBytes);
    ring.full().wait(ring.parity);
    if (rows.rows < kDeltaChunk) consumer.clear_rows(stage, rows.rows);
    if (c > 0) staged_empty.wait(static_cast<std::uint32_t>(c - 1) & 1);
    consumer.begin(stage);
    consumer.stage_output(own, staged_full);
    consumer.make_u(stage);
    consumer.take_u(stage);
    ring.empty().arrive();
  }
  staged_empty.wait(static_cast<std::uint32_t>(chunks - 1) & 1);
  consumer.stage_output(own, staged_full);
  consumer.store_state();
}

template <int KeyDim>
void launch(const Launch& to, const CUtensorMap& map, const CUtensorMap& values, const DeltaUnitsParams& p) {
  const DeltaShape& d = p.state.shape;
  constexpr int kBytes = Stage<KeyDim>::kSharedBytes;
  cudaFuncSetAttribute(pass<KeyDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(static_cast<unsigned>((d.value_dim + kColumns - 1) / kColumns), static_cast<unsigned>(d.value_heads),
                  static_cast<unsigned>(to.max_ranges));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = grid;
  how.blockDim = dim3(kThreads);
  how.dynamicSmemBytes = kBytes;
  how.stream = to.stream;
  how.attrs = &early;
  how.numAttrs = 1;
  cudaLaunchKernelEx(&how, pass<KeyDim>, map, values, p);
}

}  // namespace

void delta_pass(const Launch& to, const CUtensorMap& map, const CUtensorMap& values, const DeltaUnitsParams& p) {
  p.state.shape.key_dim == 32 ? launch<32>(to, map, values, p) : launch<128>(to, map, values, p);
}

}  // namespace nibble::cuda
