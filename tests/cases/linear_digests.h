// linear_digests.h: which cases of Linear have a digest for each profile, and what is digested.
#pragma once

#include "tests/cases/linear_cases.h"
#include "tests/support/op_digests.h"

namespace nibble::test {

struct LinearProfile {
  cuda::ArchPath path;
  const char* name;
  std::string file() const { return std::string("ops.linear.") + name + ".txt"; }
  std::vector<Combination> table() const {
    return path == cuda::ArchPath::sm120 ? sm120_combinations() : combinations();
  }
};
constexpr LinearProfile kLinearProfiles[] = {
    {cuda::ArchPath::sm70, "sm70"}, {cuda::ArchPath::sm90, "sm90"}, {cuda::ArchPath::sm120, "sm120"}};

struct LinearCase {
  Combination of;
  Case sizes;
  std::size_t index;
  std::string key() const { return case_key(of, sizes, index); }
  std::int64_t products() const { return sizes.n * sizes.k * sizes.t; }
};

// f(case) for each of a combination, as the tests on the card run them: sm70 writes float32 always.
template <class F>
void each_linear_case(cuda::ArchPath path, const Combination& c, F f) {
  std::size_t index = 0;
  for (Case s : cases_of(c)) {
    if (path == cuda::ArchPath::sm70) s.bf16_output = false;
    f(LinearCase{c, s, index++});
  }
}

inline OwnedWeight weight_of(const LinearCase& l) { return {l.of, l.sizes, kWeightSeed + l.index}; }
inline LinearInput input_of(const LinearCase& l, cuda::ArchPath path) {
  LinearInput x = random_input(l.of, l.sizes, kInputSeed + l.index, path);
  if (path == cuda::ArchPath::sm70) put_in_float32(x);
  return x;
}

}  // namespace nibble::test
