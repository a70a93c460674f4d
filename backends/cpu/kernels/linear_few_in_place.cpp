// linear_few_in_place.cpp: few rows over a weight that lies row by row.
#include "backends/cpu/kernels/linear_few.h"
#include "backends/cpu/kernels/row_decode.h"

namespace nibble::cpu::NIBBLE_ISA {

void few_rows_in_place(const LinearBlock& b, std::int64_t panel_begin, std::int64_t panel_end) {
  few_rows_with<RowDecoder>(b, panel_begin, panel_end);
}

}  // namespace nibble::cpu::NIBBLE_ISA
