// op_digests.h: digests of what ops wrote, in text files: for each case a line of its text, a tab and 16 hexadecimal
// digits. A card writes them (tests/cuda/op_digests_test.cu); the CPU's mirror must reproduce them without one.
//
// A digest is FNV-1a with 64 bits over the values' float32 patterns, as in nibble/parity.h: row-major without padding,
// each pattern's lowest byte first, every NaN as 0x7FFFFFFF. 16-bit values are widened, which loses nothing; codes and
// byte scales are a byte each.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/numerics/scalar.h"

namespace nibble::test {

class OpDigest {
 public:
  void add(std::span<const float> values) {
    for (const float v : values) {
      const std::uint32_t bits = v == v ? num::bit_cast<std::uint32_t>(v) : 0x7FFFFFFFu;
      for (int shift = 0; shift < 32; shift += 8) add_byte(bits >> shift & 255u);
    }
  }
  void add(std::span<const std::uint8_t> codes) {
    for (const std::uint8_t code : codes) add_byte(code);
  }
  std::uint64_t value() const { return hash_; }

 private:
  void add_byte(std::uint64_t byte) { hash_ = (hash_ ^ byte) * 0x100000001B3ull; }
  std::uint64_t hash_ = 0xCBF29CE484222325ull;
};

inline std::string digest_text(std::uint64_t digest) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(digest));
  return digits;
}
inline std::string digest_line(const std::string& of_case, std::uint64_t digest) {
  return of_case + "\t" + digest_text(digest) + "\n";
}

class DigestFile {
 public:
  // A file that cannot be read has no cases.
  explicit DigestFile(const std::filesystem::path& path)
      : DigestFile(path.filename().string(), std::ifstream(path, std::ios::binary)) {}
  DigestFile(std::string name, std::istream&& in) : name_(std::move(name)) {
    if (!in) faults_.push_back(says("cannot be read"));
    for (std::string line; std::getline(in, line);) {
      const std::size_t tab = line.find('\t');
      const std::string digits = tab == std::string::npos ? "" : line.substr(tab + 1);
      if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
        faults_.push_back(says("expected a case, a tab and 16 digits, found \"" + line + "\""));
      } else if (!digests_.emplace(line.substr(0, tab), digits).second) {
        faults_.push_back(says("has case \"" + line.substr(0, tab) + "\" twice"));
      }
    }
  }

  // Lines that are none, cases of the table that the file lacks, cases of the file that the table lacks.
  std::vector<std::string> faults(const std::vector<std::string>& table) const {
    std::vector<std::string> all = faults_;
    const std::set<std::string> known(table.begin(), table.end());
    if (known.size() != table.size()) all.push_back(says("the table of cases has a text twice"));
    for (const std::string& each : known) {
      if (!digests_.contains(each)) all.push_back(says("lacks case \"" + each + "\""));
    }
    for (const auto& [each, digest] : digests_) {
      if (!known.contains(each)) all.push_back(says("has a case that is in no table: \"" + each + "\""));
    }
    return all;
  }
  // Empty if this is what the card computed.
  std::string fault(const std::string& of_case, std::uint64_t computed) const {
    const auto found = digests_.find(of_case);
    if (found == digests_.end()) return says("lacks case \"" + of_case + "\"");
    if (found->second == digest_text(computed)) return "";
    return says("case \"" + of_case + "\": the card computed " + found->second + ", this is " + digest_text(computed));
  }

 private:
  std::string says(const std::string& what) const {
    return name_ + ": " + what + " (tools/gpu_check.sh --stage ops writes digest-" + name_ + " on a card)";
  }
  std::string name_;
  std::vector<std::string> faults_;
  std::map<std::string, std::string> digests_;
};

}  // namespace nibble::test
