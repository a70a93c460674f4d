// delta_stages.cuh: shared memory of delta_pass.cu and the warps that fill and empty it.
//   tiles    of a chunk: keys, queries and decays, which come together, values, A, M. Each of these four goes round in a
//            ring of its own, so that its next chunk is asked for as soon as the last use of the chunk before is over
//   rooms    deep: three chunks of all, one block on a multiprocessor. two: two of keys and queries, one of the others, and
//            two blocks, so that one computes while the other waits. small: one of each, 73 KiB
//   output   o of a chunk lies where each consumer warp left its 16 columns; a warp stores it
#pragma once

#include "backends/cuda/ops/delta_units.cuh"
#include "backends/cuda/ops/linear_ring.cuh"

namespace nibble::cuda {

constexpr int kPassColumns = 64, kPassConsumers = 128, kPassThreads = kPassConsumers + 128;
constexpr int kValueBytes = kDeltaChunk * kPassColumns * 2, kDecayBytes = 2 * kDeltaChunk * 4;
constexpr int kAPlace = 2 * kHalfOfA, kZerosOfA = kAPlace - kABytes;  // columns 32 .. 63 of rows 0 .. 31: never copied
constexpr int kOutputRow = 32, kOutputOfWarp = kDeltaChunk * kOutputRow;  // bytes

enum class Rooms { deep, two, small };

template <int KeyDim, Rooms Kind>
struct PassRooms {
  using Tile = KeyTile<KeyDim>;
  static constexpr bool kDeep = Kind == Rooms::deep, kTwo = Kind == Rooms::two;
  static constexpr int kBlocks = kTwo ? 2 : 1, kKeyChunks = kDeep ? 3 : kTwo ? 2 : 1, kOtherChunks = kDeep ? 3 : 1;
  static constexpr int kKeysAt = 0, kQueriesAt = kKeysAt + kKeyChunks * Tile::kBytes;
  static constexpr int kValuesAt = kQueriesAt + kKeyChunks * Tile::kBytes, kAAt = kValuesAt + kOtherChunks * kValueBytes;
  static constexpr int kMAt = kAAt + kOtherChunks * kAPlace, kOutputAt = kMAt + kOtherChunks * kMBytes;
  static constexpr int kDecaysAt = kOutputAt + 4 * kOutputOfWarp, kBarriersAt = kDecaysAt + kKeyChunks * kDecayBytes;
  static constexpr int kBarriers = 2 * (kKeyChunks + 3 * kOtherChunks + 1);
  // Two blocks: warps that compute take the registers of those that do not.
  static constexpr int kServerRegisters = 40, kConsumerRegisters = 216;
  static_assert(!kTwo || registers_suffice(kPassThreads, kBlocks, kServerRegisters, kConsumerRegisters));
  static constexpr int kSharedBytes = 1024 + kBarriersAt + kBarriers * 8;
  static_assert(Tile::kBytes % 1024 == 0 && kABytes % 1024 == 0 && (kSharedBytes + 1024) * kBlocks <= 228 * 1024);
};

// One of the four. Both sides go through its places in turn.
template <int Places>
struct TileRing {
  std::uint32_t barriers;  // full ones, then empty ones
  int place = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void init(std::uint32_t readers) const {
    for (int i = 0; i < Places; ++i) {
      Barrier{barriers + static_cast<std::uint32_t>(i) * 8}.init(1);
      Barrier{barriers + static_cast<std::uint32_t>(Places + i) * 8}.init(readers);
    }
  }
  __device__ __forceinline__ Barrier full() const { return {barriers + static_cast<std::uint32_t>(place) * 8}; }
  __device__ __forceinline__ Barrier empty() const { return {barriers + static_cast<std::uint32_t>(Places + place) * 8}; }
  __device__ __forceinline__ void wait_full() const { full().wait(parity); }
  __device__ __forceinline__ void wait_empty() const { empty().wait(parity ^ 1); }
  __device__ __forceinline__ void next() {
    if (++place == Places) place = 0, parity ^= 1;
  }
};

template <int KeyDim, Rooms Kind>
struct PassRings {
  using R = PassRooms<KeyDim, Kind>;
  std::uint32_t start;
  TileRing<R::kKeyChunks> keys{start + R::kBarriersAt};
  TileRing<R::kOtherChunks> values{keys.barriers + R::kKeyChunks * 16}, a{values.barriers + R::kOtherChunks * 16},
      m{a.barriers + R::kOtherChunks * 16};
  TileRing<1> output{m.barriers + R::kOtherChunks * 16};
  __device__ __forceinline__ explicit PassRings(std::uint32_t at) : start(at) {}
  __device__ __forceinline__ void init() const {
    keys.init(kPassConsumers);
    values.init(kPassConsumers);
    a.init(kPassConsumers);
    m.init(kPassConsumers);
    output.full().init(kPassConsumers);
    output.empty().init(32);
  }
  __device__ __forceinline__ std::uint32_t keys_at() const { return start + R::kKeysAt + of(keys.place, R::Tile::kBytes); }
  __device__ __forceinline__ std::uint32_t queries_at() const { return start + R::kQueriesAt + of(keys.place, R::Tile::kBytes); }
  __device__ __forceinline__ std::uint32_t decays_at() const { return start + R::kDecaysAt + of(keys.place, kDecayBytes); }
  __device__ __forceinline__ std::uint32_t values_at() const { return start + R::kValuesAt + of(values.place, kValueBytes); }
  __device__ __forceinline__ std::uint32_t a_at() const { return start + R::kAAt + of(a.place, kAPlace); }
  __device__ __forceinline__ std::uint32_t m_at() const { return start + R::kMAt + of(m.place, kMBytes); }
  __device__ __forceinline__ static std::uint32_t of(int place, int bytes) { return static_cast<std::uint32_t>(place * bytes); }
};

// Asks for a range's tiles, chunk after chunk; one thread.
template <int KeyDim, Rooms Kind>
struct PassLoader {
  using R = PassRooms<KeyDim, Kind>;
  PassRings<KeyDim, Kind> rings;
  const void *map, *value_map;
  const DeltaUnitsParams& p;
  const RangeView& r;
  int chunks, head, first;
  std::int64_t records;  // the range's first

  __device__ __forceinline__ int row_of(int chunk) const { return r.first_row + chunk_of(r, chunk).first; }
  __device__ __forceinline__ void keys(int chunk) {
    if (chunk >= chunks) return;
    const DeltaShape& d = p.state.shape;
    const int query = key_head_of(d, head) * d.key_dim, row = row_of(chunk);
    rings.keys.wait_empty();
    const Barrier full = rings.keys.full();
    full.arrive_expecting(2 * R::Tile::kBytes + kDecayBytes);
    R::Tile::copy(rings.keys_at(), map, static_cast<int>(d.key_channels()) + query, row, full);
    copy_bytes(rings.decays_at(), p.record(records + chunk, head) + kDecaysAt, kDecayBytes, full);
    R::Tile::copy(rings.queries_at(), map, query, row, full);
    rings.keys.next();
  }
  __device__ __forceinline__ void values(int chunk) {
    if (chunk >= chunks) return;
    const DeltaShape& d = p.state.shape;
    rings.values.wait_empty();
    rings.values.full().arrive_expecting(kValueBytes);
    copy_box(rings.values_at(), value_map, 2 * static_cast<int>(d.key_channels()) + head * d.value_dim + first, row_of(chunk),
             rings.values.full());
    rings.values.next();
  }
  __device__ __forceinline__ void a(int chunk) {
    if (chunk >= chunks) return;
    rings.a.wait_empty();
    rings.a.full().arrive_expecting(kABytes);
    const std::byte* const from = p.record(records + chunk, head);
    copy_bytes(rings.a_at(), from, kHalfOfA, rings.a.full());
    copy_bytes(rings.a_at() + kHalfOfA + kZerosOfA, from + kHalfOfA, kABytes - kHalfOfA, rings.a.full());
    rings.a.next();
  }
  __device__ __forceinline__ void m(int chunk) {
    if (chunk >= chunks) return;
    rings.m.wait_empty();
    rings.m.full().arrive_expecting(kMBytes);
    copy_bytes(rings.m_at(), p.record(records + chunk, head) + kABytes, kMBytes, rings.m.full());
    rings.m.next();
  }
};

// In each turn what the chunk's consumers give free is filled, in the order in which they do; one thread.
template <int KeyDim, Rooms Kind>
__device__ __forceinline__ void load_tiles(PassLoader<KeyDim, Kind> loader) {
  using R = PassRooms<KeyDim, Kind>;
  wait_for_launches_before();  // records; all else was there before delta_prepare began
#pragma unroll 1
  for (int c = 0; c < R::kKeyChunks; ++c) {
    loader.keys(c);
    if (c >= R::kOtherChunks) continue;
    loader.values(c);
    loader.a(c);
    loader.m(c);
  }
#pragma unroll 1
  for (int c = 0; c < loader.chunks; ++c) {
    loader.values(c + R::kOtherChunks);
    loader.a(c + R::kOtherChunks);
    loader.m(c + R::kOtherChunks);
    loader.keys(c + R::kKeyChunks);
  }
}

// o of each chunk, by a warp. What the consumers leave first is nothing.
__device__ __forceinline__ void store_outputs(const DeltaUnitsParams& p, const RangeView& r, int chunks, int head, int first,
                                              const std::byte* staged, const TileRing<1>& output, int lane) {
  const int column = first + lane % 8 * 8;
  const std::byte* const from = staged + lane % 8 / 2 * kOutputOfWarp + lane % 2 * 16;
#pragma unroll 1
  for (int turn = 0; turn <= chunks; ++turn) {
    const ChunkRows rows = turn == 0 ? ChunkRows{0, 0} : chunk_of(r, turn - 1);
    const int here = column < p.state.shape.value_dim ? rows.rows : 0;
    Bf16* y = p.y.row(r.first_row + rows.first + lane / 8) + std::int64_t{head} * p.state.shape.value_dim + column;
    output.full().wait(static_cast<std::uint32_t>(turn) & 1);
#pragma unroll 2
    for (int row = lane / 8; row < kDeltaChunk; row += 4, y += 4 * p.y.stride) {
      const uint4 eight = *reinterpret_cast<const uint4*>(from + row * kOutputRow);
      if (row < here) *reinterpret_cast<uint4*>(y) = eight;
    }
    output.empty().arrive();
  }
}

}  // namespace nibble::cuda
