// sequence_digests.h: the scripts of sequence_cases.h that have a digest, the same in every profile: no matrix units (the
// delta rule is that of profile f32), and buffers of f32 and bf16 are both there.
#pragma once

#include "tests/cases/sequence_cases.h"

namespace nibble::test {

constexpr const char* kSequenceDigests = "ops.sequence.txt";

struct SequenceCase {
  enum class Script {
    delta,
    attention,
    delta_ragged,
    attention_ragged,
    delta_wide_keys,
    attention_across_splits,
    attention_wide_head
  };
  Script script;
  int shape;
  std::int32_t rows;
  bool bf16;

  std::string group() const {
    switch (script) {
      case Script::delta: return std::string("delta_") + kDelta[shape].name;
      case Script::attention: return std::string("attention_") + kAttention[shape].name;
      default: return "others";
    }
  }
  std::string key() const {
    const std::string type = bf16 ? " bf16" : " f32";
    switch (script) {
      case Script::delta:
      case Script::attention: return group() + " T=" + std::to_string(rows) + type;
      case Script::delta_ragged: return std::string("delta_ragged ") + kDelta[shape].name + type;
      case Script::attention_ragged: return std::string("attention_ragged ") + kAttention[shape].name + type;
      case Script::delta_wide_keys: return "delta_wide_keys" + type;
      case Script::attention_across_splits: return "attention_across_splits" + type;
      case Script::attention_wide_head: return "attention_wide_head" + type;
    }
    return "";
  }
};

inline std::vector<SequenceCase> sequence_cases() {
  using Script = SequenceCase::Script;
  std::vector<SequenceCase> all;
  for (const bool bf16 : {false, true}) {
    for (const std::int32_t rows : kRowCounts) {
      for (int i = 0; i < static_cast<int>(std::size(kDelta)); ++i) all.push_back({Script::delta, i, rows, bf16});
      for (int i = 0; i < static_cast<int>(std::size(kAttention)); ++i) {
        all.push_back({Script::attention, i, rows, bf16});
      }
    }
    for (const int i : kRaggedDelta) all.push_back({Script::delta_ragged, i, 0, bf16});
    for (const int i : kRaggedAttention) all.push_back({Script::attention_ragged, i, 0, bf16});
    for (const Script s : {Script::delta_wide_keys, Script::attention_across_splits, Script::attention_wide_head}) {
      all.push_back({s, 0, 0, bf16});
    }
  }
  return all;
}

// Of all that worlds of these kinds write.
template <template <class> class Delta, template <class> class Attention>
std::uint64_t sequence_digest(const SequenceCase& c) {
  using Script = SequenceCase::Script;
  std::uint64_t digest = 0;
  with_element(c.bf16, [&](auto e) {
    using E = decltype(e);
    const auto run = [&](auto&& world, const auto& script) {
      script(world);
      digest = world.digest.value();
    };
    switch (c.script) {
      case Script::delta: {
        const DeltaCase& d = kDelta[c.shape];
        return run(Delta<E>(d.shape, 2, d.records), [&](auto& w) { delta_sequence(w, d.records, c.rows); });
      }
      case Script::attention:
        return run(Attention<E>(kAttention[c.shape].c, 2, c.rows + 128),
                   [&](auto& w) { attention_sequence(w, c.rows); });
      case Script::delta_ragged:
        return run(Delta<E>(kDelta[c.shape].shape, 6, kDelta[c.shape].records), [](auto& w) { delta_ragged(w); });
      case Script::attention_ragged:
        return run(Attention<E>(kAttention[c.shape].c, 5, 320), [](auto& w) { attention_ragged(w); });
      case Script::delta_wide_keys:
        return run(Delta<E>(kWideKeys, 1, 3), [](auto& w) { delta_wide_keys(w); });
      case Script::attention_across_splits:
        return run(Attention<E>(kAcrossSplits, 2, 2300), [](auto& w) { attention_across_splits(w); });
      case Script::attention_wide_head:
        return run(Attention<E>(kWideHead, 1, 192), [](auto& w) { attention_wide_head(w); });
    }
  });
  return digest;
}

}  // namespace nibble::test
