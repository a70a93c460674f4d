// isa.h: which compile of the inner loops serves. kernels/*.cpp exist once for each instruction
// set, in a namespace of its own; drivers pick one through a table of functions.
//
// Files in kernels/ call no function that is shared between instruction sets unless it is always
// inlined: the linker keeps one copy, and it may be the one that this processor cannot run.
#pragma once

#include <vector>

namespace nibble::cpu {

enum class Isa { portable, avx2, avx512, neon };

const char* isa_name(Isa isa);
std::vector<Isa> available_isas();  // best first: compiled in, and this processor has it

}  // namespace nibble::cpu

// NIBBLE_ON_EACH_ISA(const Table& table();) declares it in every namespace of kernels.
#define NIBBLE_ON_EACH_ISA(declaration) \
  namespace portable {                  \
  declaration                           \
  }                                     \
  namespace avx2 {                      \
  declaration                           \
  }                                     \
  namespace avx512 {                    \
  declaration                           \
  }                                     \
  namespace neon {                      \
  declaration                           \
  }

// NIBBLE_PICK_ISA(isa, table()) returns that of `isa`, among those that were compiled in; for files that
// are compiled once.
#if defined(NIBBLE_HAS_avx512)
#define NIBBLE_PICK_AVX512(isa, call) \
  if (isa == Isa::avx512) return avx512::call;
#else
#define NIBBLE_PICK_AVX512(isa, call)
#endif
#if defined(NIBBLE_HAS_avx2)
#define NIBBLE_PICK_AVX2(isa, call) \
  if (isa == Isa::avx2) return avx2::call;
#else
#define NIBBLE_PICK_AVX2(isa, call)
#endif
#if defined(NIBBLE_HAS_neon)
#define NIBBLE_PICK_NEON(isa, call) \
  if (isa == Isa::neon) return neon::call;
#else
#define NIBBLE_PICK_NEON(isa, call)
#endif
#define NIBBLE_PICK_ISA(isa, call) \
  static_cast<void>(isa);          \
  NIBBLE_PICK_AVX512(isa, call)    \
  NIBBLE_PICK_AVX2(isa, call)      \
  NIBBLE_PICK_NEON(isa, call)      \
  return portable::call
