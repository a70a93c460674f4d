#include "backends/cpu/kernels/sequence_table.h"

#define NIBBLE_STRING_(x) #x
#define NIBBLE_STRING(x) NIBBLE_STRING_(x)

namespace nibble::cpu::NIBBLE_ISA {

const SequenceKernels& sequence_table() {
  static constexpr SequenceKernels table = {NIBBLE_STRING(NIBBLE_ISA),
                                            conv,
                                            gates,
                                            fold,
                                            delta_step,
                                            delta_chunks,
                                            delta_units_sm90,
                                            delta_units_sm70,
                                            rope,
                                            attend,
                                            attend_units,
                                            attend_units_sm70,
                                            combine,
                                            finish};
  return table;
}

}  // namespace nibble::cpu::NIBBLE_ISA
