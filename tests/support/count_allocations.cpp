#include "tests/support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<std::uint64_t> allocations{0};

void note() noexcept {
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

namespace nibble::test {

void start_counting() {
  allocations = 0;
  counting = true;
}

std::uint64_t stop_counting() {
  counting = false;
  return allocations;
}

}  // namespace nibble::test
