// After a warm-up, a step allocates nothing: neither by operator new nor by malloc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "backends/cpu/cpu_backend.h"
#include "tests/backend/toy.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::uint64_t> allocations{0};

void note() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

#if defined(__SANITIZE_ADDRESS__)
#define NIBBLE_OWN_MALLOC 0  // the sanitizer's malloc stays; operator new is counted below
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NIBBLE_OWN_MALLOC 0
#endif
#endif
#if !defined(NIBBLE_OWN_MALLOC)
#if defined(__GLIBC__)
#define NIBBLE_OWN_MALLOC 1
#else
#define NIBBLE_OWN_MALLOC 0
#endif
#endif

}  // namespace

#if NIBBLE_OWN_MALLOC
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
  note();
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  note();
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  note();
  return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  note();
  return __libc_memalign(alignment, n);
}
void* memalign(std::size_t alignment, std::size_t n) {
  note();
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
  note();
  *p = __libc_memalign(alignment, n);
  return *p == nullptr ? 12 : 0;
}
}
#else
void* operator new(std::size_t n) {
  note();
  void* const p = std::malloc(n == 0 ? 1 : n);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](std::size_t n) {
  return operator new(n);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
#endif

namespace nibble::cpu {
namespace {

struct Steps {
  explicit Steps(int threads) : backend({threads, ""}) {
    backend.prepare(test::toy_model(sizes), test::toy_state(sizes), {});
    for (std::int32_t i = 0; i < 4; ++i) {
      test::Sequence s;
      s.slot = i;
      for (std::int32_t p = 0; p < 16; ++p) s.pages.push_back(i * 16 + p);
      s.sampling = {.temperature = i % 2 ? 0.8f : 0.0f,
                    .top_p = 0.9f,
                    .repetition_penalty = 1.1f,
                    .top_k = 10 * (i / 2)};
      sequences.push_back(s);
    }
    run(test::kMixed, Section::prefill, 50);
  }

  // Batches are the caller's: they are made before counting.
  std::uint64_t run(std::size_t program, Section section, std::size_t rows) {
    test::BatchBuilder builder;
    for (test::Sequence& s : sequences) {
      builder.add(section, s, std::vector<std::int32_t>(rows, 7 + s.slot), rows - 1);
    }
    if (program == test::kScore) {
      builder.batch.sampling.clear();
      builder.batch.targets.assign(builder.batch.output_rows.size(), 3);
    }
    allocations = 0;
    counting = true;
    backend.run(program, builder.batch, out, {});
    counting = false;
    return allocations;
  }

  test::ToySizes sizes;
  CpuBackend backend;
  std::vector<test::Sequence> sequences;
  StepOutput out;
};

TEST(Allocations, TheCounterCounts) {
  allocations = 0;
  counting = true;
  const auto* const p = new std::vector<int>(100);
  counting = false;
  delete p;
  EXPECT_GE(allocations, 2u);
}

TEST(Allocations, NoneInAStep) {
  for (const int threads : {1, 2}) {
    Steps steps(threads);
    for (int warm = 0; warm < 5; ++warm) {
      steps.run(test::kDecode, Section::decode, 1);
      steps.run(test::kVerify, Section::verify, 3);
      steps.run(test::kMixed, Section::prefill, 20);
      steps.run(test::kScore, Section::prefill, 5);
    }
    for (int round = 0; round < 5; ++round) {
      EXPECT_EQ(steps.run(test::kDecode, Section::decode, 1), 0u) << threads;
      EXPECT_EQ(steps.run(test::kVerify, Section::verify, 3), 0u) << threads;
      EXPECT_EQ(steps.run(test::kMixed, Section::prefill, 20), 0u) << threads;
      EXPECT_EQ(steps.run(test::kScore, Section::prefill, 5), 0u) << threads;
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
