// sequence_table.h: what the kernel files of one instruction set give to the table.
#pragma once

#include "backends/cpu/kernels/sequence_kernels.h"

namespace nibble::cpu::NIBBLE_ISA {

void conv(const ConvTask& t);
void gates(const GatesTask& t);
void fold(const FoldTask& t);
void delta_step(const DeltaTask& t);
void delta_chunks(const DeltaTask& t);
void delta_units_sm90(const DeltaTask& t);
void delta_units_sm70(const DeltaTask& t);
void rope(const RopeTask& t);
void attend(const AttendTask& t);
void attend_units(const AttendUnitsTask& t);
void attend_units_sm70(const AttendUnitsTask& t);
void combine(const CombineTask& t);
void finish(const float* o, float l, int columns, float* y);

const SequenceKernels& sequence_table();

}  // namespace nibble::cpu::NIBBLE_ISA
