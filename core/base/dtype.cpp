#include "core/base/dtype.h"

#include <iterator>

namespace nibble {
namespace {

struct Row {
  DType type;
  const char* name;
  int bits;
};

constexpr Row kRows[] = {
    {DType::f64, "F64", 64},        {DType::f32, "F32", 32},        {DType::f16, "F16", 16},
    {DType::bf16, "BF16", 16},      {DType::f8_e4m3, "F8_E4M3", 8}, {DType::f8_e5m2, "F8_E5M2", 8},
    {DType::f8_e8m0, "F8_E8M0", 8}, {DType::f4_e2m1, "F4", 4},      {DType::f6_e2m3, "F6_E2M3", 6},
    {DType::f6_e3m2, "F6_E3M2", 6}, {DType::i64, "I64", 64},        {DType::i32, "I32", 32},
    {DType::i16, "I16", 16},        {DType::i8, "I8", 8},           {DType::u64, "U64", 64},
    {DType::u32, "U32", 32},        {DType::u16, "U16", 16},        {DType::u8, "U8", 8},
    {DType::boolean, "BOOL", 8},    {DType::c64, "C64", 64},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<std::size_t>(kRows[i].type) != i) return false;
  }
  return true;
}
static_assert(rows_follow_the_enum());

}  // namespace

const char* dtype_name(DType t) { return kRows[static_cast<int>(t)].name; }
int dtype_bits(DType t) { return kRows[static_cast<int>(t)].bits; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.type;
  }
  return std::nullopt;
}

}  // namespace nibble
