#include <string>

#include "backends/cpu/cpu_info.h"
#include "backends/cpu/kernels/sequence_kernels.h"
#include "nibble/error.h"

namespace nibble::cpu {

#if defined(NIBBLE_HAS_avx512)
namespace avx512 {
const SequenceKernels& sequence_table();
}
#endif
#if defined(NIBBLE_HAS_avx2)
namespace avx2 {
const SequenceKernels& sequence_table();
}
#endif
#if defined(NIBBLE_HAS_neon)
namespace neon {
const SequenceKernels& sequence_table();
}
#endif
namespace portable {
const SequenceKernels& sequence_table();
}

const SequenceKernels& sequence_kernels(std::string_view isa) {
  const bool here = has_isa(std::string(isa));
#if defined(NIBBLE_HAS_avx512)
  if (here && isa == "avx512") return avx512::sequence_table();
#endif
#if defined(NIBBLE_HAS_avx2)
  if (here && isa == "avx2") return avx2::sequence_table();
#endif
#if defined(NIBBLE_HAS_neon)
  if (here && isa == "neon") return neon::sequence_table();
#endif
  if (here && isa == "portable") return portable::sequence_table();
  throw Error(ErrorCode::unsupported, "[cpu] kernels \"" + std::string(isa) +
                                          "\": this build or this processor has not got them");
}

}  // namespace nibble::cpu
