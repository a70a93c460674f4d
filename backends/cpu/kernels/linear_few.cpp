// linear_few.cpp: few rows over a weight's image.
#include "backends/cpu/kernels/linear_few.h"

#include "backends/cpu/kernels/panel_decode.h"

namespace nibble::cpu::NIBBLE_ISA {

void few_rows(const LinearBlock& b, std::int64_t panel_begin, std::int64_t panel_end) {
  if (b.weight->layout == Layout::rows) return few_rows_in_place(b, panel_begin, panel_end);
  few_rows_with<Decoder>(b, panel_begin, panel_end);
}

}  // namespace nibble::cpu::NIBBLE_ISA
