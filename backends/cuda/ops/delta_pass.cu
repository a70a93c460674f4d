// delta_pass.cu: the state of a sequence through its chunks (delta_units.cuh)
//   map     block = 64 columns v of a value head of a range: a warpgroup, and two warps that serve it. All products are
//           transposed, so that sums are the next product's register operand: lane 4 g + p of warp w has, of S^T, P^T,
//           Q^T, R^T, U^T and o^T, rows v = 16 w + g and + 8, columns 8 n + 2 p and + 1 (keys' x, or tokens)
//   tiles   come through delta_stages.cuh's rings
//   S       float32 in registers from the first chunk to the last
//   order   o of a chunk goes to shared memory while P and Q of the next are made
//   rows    beyond the range hold anything: keys and values are made zero there, o is not stored
//   cost    2 * 64 * (4 * key_dim + 3 * 64) * value_dim a chunk and head, bf16 but for a sixth in tf32 -> latency of three
//           products that need one another
//   needs   sm_90a
#include "backends/cuda/device/delta_products.cuh"
#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/ops/delta_stages.cuh"

namespace nibble::cuda {
namespace {

__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kPassConsumers) : "memory"); }
__device__ __forceinline__ float2 pair_at(const float* at) { return *reinterpret_cast<const float2*>(at); }

// Columns 16 s .. 16 s + 15 of sums as a fragment.
template <int N>
__device__ __forceinline__ void fragment_of(const float (&v)[N], int s, std::uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = bf16_pair(v[8 * s + 2 * i], v[8 * s + 2 * i + 1]);
}

template <int KeyDim, Rooms Kind, class Units>
struct Consumer {
  using Tile = KeyTile<KeyDim>;
  const DeltaUnitsParams& p;
  const RangeView& r;
  int head, first;  // its first column
  std::byte* memory;  // at rings.start
  PassRings<KeyDim, Kind> rings;
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
      for (int i = static_cast<int>(threadIdx.x); i < KeyDim * kPassColumns; i += kPassConsumers) {
        const int x = i / kPassColumns, v = first + i % kPassColumns;
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
  __device__ __forceinline__ void clear_rows(int rows) {
    constexpr int kEights = KeyDim / 8, kValueEights = kPassColumns / 8, kAll = kEights + kValueEights;
    std::byte *const keys = memory + (rings.keys_at() - rings.start), *const values = memory + (rings.values_at() - rings.start);
    for (int i = rows * kAll + static_cast<int>(threadIdx.x); i < kDeltaChunk * kAll; i += kPassConsumers) {
      const int row = i / kAll, eight = i % kAll;
      std::byte* const to = eight < kEights ? keys + Tile::at(row, eight)
                                            : values + row * 128 + ((eight - kEights) ^ (row & 7)) * 16;
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
  __device__ __forceinline__ void begin() {
    const std::uint32_t keys = rings.keys_at(), queries = rings.queries_at();
    zero(past);
    zero(answer);
    Units::fence();
#pragma unroll
    for (int n = 0; n < Tile::kSteps; ++n) Units::template tokens<Tile>(past, of_s[n], keys, n);
    Units::commit();
#pragma unroll
    for (int n = 0; n < Tile::kSteps; ++n) Units::template tokens<Tile>(answer, of_s[n], queries, n);
    Units::commit();
  }
  // From P and Q to U; nothing is on its way then.
  __device__ __forceinline__ void make_u() {
    const std::uint32_t values = rings.values_at(), a = rings.a_at();
    const float* const grown = reinterpret_cast<const float*>(memory + (rings.decays_at() - rings.start));
    const float* const rest = grown + kDeltaChunk;
    uint4 v[4];  // of tokens 16 m ..: eight columns, the next eight, then the same of eight tokens on
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = m * 16 + lane / 16 * 8 + lane % 8, eight = warp * 2 + lane / 8 % 2;
      v[m] = load_transposed(values + static_cast<std::uint32_t>(token * 128 + (eight ^ (token & 7)) * 16));
    }
    Units::template wait<1>();
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
      if (half == 0) {
        Units::template wait<0>();
        settle(answer);
#pragma unroll
        for (int n = 0; n < Tile::kSteps; ++n) settle(of_s[n]);  // not used for anything else before
        rings.a.wait_full();
        settle(u);
      }
      Units::fence();
#pragma unroll
      for (int m = 4 * half; m < 4 * half + 4; ++m) {
        Units::a_of(u, residual[m], a, kHalfOfA, m);
      }
      Units::commit();
    }
    rings.values.empty().arrive();
    const float last = grown[kDeltaChunk - 1];
#pragma unroll
    for (int i = 0; i < KeyDim / 2; ++i) s[i] = num::mul(last, s[i]);
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float2 decay = pair_at(grown + 8 * m + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) answer[4 * m + e] = num::mul(e % 2 == 0 ? decay.x : decay.y, answer[4 * m + e]);
    }
    settle(s);
    settle(answer);
    Units::template wait<0>();
    settle(u);
    rings.a.empty().arrive();
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
  __device__ __forceinline__ void take_u() {
    const std::uint32_t keys = rings.keys_at(), m = rings.m_at();
    Units::fence();
#pragma unroll
    for (int n = 0; n < 4; ++n) Units::template keys<Tile, KeyDim>(s, decayed[n], keys, n);
    Units::commit();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      Units::m_of(answer, plain[n], m, n);
    }
    Units::commit();
    Units::template wait<1>();
    settle(s);
    fragments_of_s();
    Units::template wait<0>();
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

template <int KeyDim, Rooms Kind, class Units>
__global__ void __launch_bounds__(kPassThreads, (PassRooms<KeyDim, Kind>::kBlocks))
    pass(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap value_map, const DeltaUnitsParams p) {
  using R = PassRooms<KeyDim, Kind>;
  extern __shared__ std::byte memory[];
  const int index = static_cast<int>(blockIdx.z);
  const RangeView* const range = section_range(*p.steps, p.section, index);
  if (range == nullptr) return wait_for_launches_before();
  const RangeView r = *range;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kPassColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t start = (shared_address(memory) + 1023) / 1024 * 1024;
  std::byte* const base = memory + (start - shared_address(memory));
  const PassRings<KeyDim, Kind> rings(start);
  if (threadIdx.x == 0) {
    rings.init();
    fence_barriers();
  }
  __syncthreads();
  const int chunks = chunks_of(r);
  if (warp >= kPassConsumers / 32) {
    if constexpr (R::kTwo) give_registers<R::kServerRegisters>();
    if (warp == kPassConsumers / 32) {
      if (lane == 0) load_tiles<KeyDim, Kind>({rings, &map, &value_map, p, r, chunks, head, first, first_record(r, index)});
    } else if (warp == kPassConsumers / 32 + 1) {
      store_outputs(p, r, chunks, head, first, base + R::kOutputAt, rings.output, lane);
    }
    return;
  }
  if constexpr (R::kTwo) take_registers<R::kConsumerRegisters>();
  Consumer<KeyDim, Kind, Units> consumer{p, r, head, first, base, rings, warp, lane, {}, {}, {}, {}, {}, {}, {}};
  for (int i = static_cast<int>(threadIdx.x); i < R::kOtherChunks * kZerosOfA / 16; i += kPassConsumers) {
    const int place = i / (kZerosOfA / 16), at = i % (kZerosOfA / 16) * 16;
    *reinterpret_cast<uint4*>(base + R::kAAt + place * kAPlace + kHalfOfA + at) = make_uint4(0, 0, 0, 0);
  }
  fence_shared_writes();
  consumers_meet();
  consumer.load_state();
  consumer.fragments_of_s();
  std::byte* const own = base + R::kOutputAt + warp * kOutputOfWarp;
  // Nothing waits for a barrier while products are on their way: ptxas would wait after each of them.
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const ChunkRows rows = chunk_of(r, c);
    consumer.rings.keys.wait_full();
    consumer.rings.values.wait_full();
    if (rows.rows < kDeltaChunk) consumer.clear_rows(rows.rows);
    if (c > 0) rings.output.empty().wait(static_cast<std::uint32_t>(c - 1) & 1);
    consumer.begin();
    consumer.stage_output(own, rings.output.full());
    consumer.make_u();
    consumer.rings.m.wait_full();
    consumer.take_u();
    consumer.rings.keys.empty().arrive();
    consumer.rings.m.empty().arrive();
    consumer.rings.keys.next();
    consumer.rings.values.next();
    consumer.rings.a.next();
    consumer.rings.m.next();
  }
  rings.output.empty().wait(static_cast<std::uint32_t>(chunks - 1) & 1);
  consumer.stage_output(own, rings.output.full());
  consumer.store_state();
}

template <int KeyDim, Rooms Kind, class Units>
void launch(const Launch& to, const CUtensorMap& map, const CUtensorMap& values, const DeltaUnitsParams& p, const dim3& grid) {
  constexpr int kBytes = PassRooms<KeyDim, Kind>::kSharedBytes;
  cudaFuncSetAttribute(pass<KeyDim, Kind, Units>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = grid;
  how.blockDim = dim3(kPassThreads);
  how.dynamicSmemBytes = kBytes;
  how.stream = to.stream;
  how.attrs = &early;
  how.numAttrs = 1;
  cudaLaunchKernelEx(&how, pass<KeyDim, Kind, Units>, map, values, p);
}

template <int KeyDim>
void launch(const Launch& to, const CUtensorMap& map, const CUtensorMap& values, const DeltaUnitsParams& p) {
  const DeltaShape& d = p.state.shape;
  const dim3 grid(static_cast<unsigned>((d.value_dim + kPassColumns - 1) / kPassColumns),
                  static_cast<unsigned>(d.value_heads), static_cast<unsigned>(to.max_ranges));
  // Two blocks on a multiprocessor take five thirds of the time of one.
  const std::int64_t blocks = std::int64_t{grid.x} * grid.y * grid.z, places = to.multiprocessors > 0 ? to.multiprocessors : 1;
  const std::int64_t turns = (blocks + places - 1) / places, turns_of_two = (blocks + 2 * places - 1) / (2 * places);
  const bool deep = 3 * turns <= 5 * turns_of_two;
  if (p.warps) return launch<KeyDim, Rooms::small, MmaUnits>(to, map, values, p, grid);
  deep ? launch<KeyDim, Rooms::deep, WgmmaUnits>(to, map, values, p, grid)
       : launch<KeyDim, Rooms::two, WgmmaUnits>(to, map, values, p, grid);
}

}  // namespace

void delta_pass(const Launch& to, const CUtensorMap& map, const CUtensorMap& values, const DeltaUnitsParams& p) {
  p.state.shape.key_dim == 32 ? launch<32>(to, map, values, p) : launch<128>(to, map, values, p);
}

}  // namespace nibble::cuda
