#define NIBBLE_STRING_(x) #x
#define NIBBLE_STRING(x) NIBBLE_STRING_(x)

namespace nibble::cpu::NIBBLE_ISA {
const char* isa_name() { return NIBBLE_STRING(NIBBLE_ISA); }
}  // namespace nibble::cpu::NIBBLE_ISA
